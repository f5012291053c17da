"""Every key of the terminal, in one table: bindings, the help screen and docs/terminal.md are made
from it.

Terminals and multiplexers keep some keys for themselves (Ctrl-Up on macOS, Ctrl-B in tmux), so an
action that has one of these has a second key.
"""

from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct
from textual.binding import Binding, BindingType

Area = Literal[
    "anywhere",
    "chat list",
    "timeline",
    "answers",
    "plan",
    "queue",
    "composer",
    "changes",
    "mcp",
    "memory",
    "policy",
]


class Key(Struct, frozen=True):
    """`keys` are textual's names, separated by commas; the first is the one that is shown.
    `action` is the method `action_...` of the widget of that area. With `footer` it is named in the
    last line. `is_first`: taken before the widget that has the focus can take it."""

    keys: str
    action: str
    text: str
    footer: str = ""
    is_first: bool = False


def _first(keys: str, action: str, text: str, footer: str = "") -> Key:
    return Key(keys, action, text, footer, is_first=True)


KEYS: Final[Mapping[Area, tuple[Key, ...]]] = {
    "anywhere": (
        Key(
            "escape",
            "interrupt",
            "Interrupt the answer; twice in two seconds: its subagents too. Twice at an empty"
            " message box: edit your last message",
        ),
        _first("ctrl+n", "new_chat", "Start a new chat", "New"),
        _first(
            "ctrl+p", "switch", "Find and open a chat, or with a / first, run a command", "Go to"
        ),
        _first("ctrl+b,f2", "toggle_list", "Go to the chat list; there: hide it", "Chats"),
        _first("alt+up,ctrl+up", "previous_chat", "Open the chat above"),
        _first("alt+down,ctrl+down", "next_chat", "Open the chat below"),
        _first(
            "ctrl+c",
            "interrupt_or_quit",
            "Clear the draft, else interrupt the answer; twice in two seconds: leave",
        ),
        _first("ctrl+d", "detach", "Leave; the chat goes on", "Leave"),
        _first("ctrl+z", "app.suspend_process", "Suspend the terminal; fg comes back"),
        _first("f3,alt+a", "answer", "Go to what the chat asks for"),
        _first("f4,alt+m", "messages", "Go to the messages: unfold, copy, edit, fork", "Messages"),
        _first("f5", "retry", "Connect now, when the connection was lost"),
        _first("f1", "help", "Show all keys and commands", "Help"),
        Key("question_mark", "help", "The same, outside of a text box"),
    ),
    "chat list": (
        Key("enter", "choose", "Open the chat", "Open"),
        Key("up,k", "cursor_up", "The chat above"),
        Key("down,j", "cursor_down", "The chat below"),
        Key("pageup", "page_up", "A page up"),
        Key("pagedown", "page_down", "A page down"),
        Key("home,g", "first", "The first chat"),
        Key("end,G", "last", "The last chat that was read"),
        Key("left,h", "fold", "Hide the subagents"),
        Key("right,l", "unfold", "Show the subagents"),
        Key("slash", "ask('search')", "Search in titles and messages", "Search"),
        Key("v", "ask('view')", "Chats, chats shared with you, the archive", "View"),
        Key("p", "ask('pin')", "Pin the chat, or unpin it", "Pin"),
        Key("r", "ask('rename')", "Rename the chat", "Rename"),
        Key("a", "ask('archive')", "Archive the chat, or take it out", "Archive"),
        Key("u", "ask('undo')", "Take the chat that was archived last out again"),
        Key("f", "ask('fork')", "Copy the chat into a new one", "Fork"),
        Key("d,delete", "ask('delete')", "Delete the chat, after a question", "Delete"),
        Key("escape", "ask('leave')", "Back to the message", "Back"),
    ),
    "timeline": (
        Key("enter", "open", "Unfold the row, or open the chat of its subagent", "Open"),
        Key("space,o", "fold", "Fold or unfold the row"),
        Key("j", "row(1)", "The next row"),
        Key("k", "row(-1)", "The row before"),
        Key("J,right_square_bracket", "prompt(1)", "Your next message", "Next"),
        Key("K,left_square_bracket", "prompt(-1)", "Your message before", "Previous"),
        Key("up", "line(-1)", "A line up"),
        Key("down", "line(1)", "A line down"),
        Key("pageup", "page(-1)", "A page up"),
        Key("pagedown", "page(1)", "A page down"),
        Key("home,g", "top", "The first message that is loaded"),
        Key("end,G", "bottom", "The end; it is followed from then on", "End"),
        Key("c", "copy", "Copy the text of the row", "Copy"),
        Key("C", "copy_code", "Copy the code of the row, one block after the other"),
        Key("p", "picture", "Show the picture of the row, where the terminal can draw it"),
        Key("e", "edit", "Edit this message of yours and run it again", "Edit"),
        Key("f", "fork", "Copy the chat up to this message into a new one", "Fork"),
        Key("r", "again", "Try again, go on, or send again what was refused"),
        Key("x", "discard", "Discard a message that was not sent"),
        Key("m", "models", "Choose another model"),
        Key("escape", "leave", "Back to the message", "Back"),
    ),
    "answers": (
        Key("y", "answer('approve')", "Approve the call once"),
        Key("n", "answer('deny')", "Deny the call; you can say what to do instead"),
        Key("a", "answer('always')", "Allow such calls of this chat; shows the rule before"),
        Key("Y", "answer('approve_all')", "Approve all calls that wait; shows them before"),
        Key("N", "answer('deny_all')", "Deny all calls that wait; shows them before"),
        Key("1,2,3,4,5,6,7,8,9", "number({key})", "Choose by number, as it is shown"),
        Key("o", "answer('unfold')", "Show the whole text, or fold it"),
        Key("space", "answer('choose')", "Choose the option of a question, or take it back"),
        Key("enter", "answer('confirm')", "Choose the option and go on; at the end, send"),
        Key("ctrl+s,alt+s", "answer('send')", "Send the answers"),
        Key("d", "answer('decline')", "Do not answer: let the agent decide"),
        Key("up", "answer('up')", "Go to the option above"),
        Key("down", "answer('down')", "Go to the option below"),
        Key("i", "answer('implement')", "Have the plan implemented"),
        Key("c", "answer('change')", "Ask for changes of the plan"),
        Key("v", "answer('view')", "Read the whole plan"),
        Key("x", "answer('leave_plan')", "Leave plan mode without implementing the plan"),
        Key("right", "next_ask", "Show the next of what waits"),
        Key("left", "previous_ask", "Show the one before"),
        Key("escape", "leave", "Go one step back, and then to the message"),
    ),
    "plan": (
        Key("i", "answer('implement')", "Have the plan implemented"),
        Key("c", "answer('change')", "Ask for changes of the plan"),
        Key("x", "answer('leave_plan')", "Leave plan mode without implementing the plan"),
        Key("escape,q", "leave", "Go one step back, and then to the chat"),
    ),
    "queue": (
        Key("up,k", "step(-1)", "The message above"),
        Key("down,j", "step(1)", "The message below"),
        Key("enter,e", "edit", "Edit the message", "Edit"),
        Key("s", "send_now", "Send it now: the answer is interrupted", "Send now"),
        Key("d,delete", "remove", "Remove it", "Remove"),
        Key("K,shift+up", "move(-1)", "Move it up"),
        Key("J,shift+down", "move(1)", "Move it down"),
        Key("escape", "leave", "Back to the message box", "Back"),
    ),
    "composer": (
        Key("enter", "send", "Send the message, or take the chosen completion"),
        Key("ctrl+j,alt+enter,shift+enter", "new_line", "New line; so does \\ before Enter"),
        Key("up", "back", "In the first line: the last queued message, or earlier prompts"),
        Key("down", "forward", "In the last line: later prompts"),
        Key("pageup", "screen.scroll_chat(-1)", "A page up in the messages"),
        Key("pagedown", "screen.scroll_chat(1)", "A page down in the messages"),
        Key("tab", "complete", "Take the chosen completion of a /command or an @path"),
        Key("escape", "close", "Close the menu, cancel the sending, or leave the edit"),
        Key("ctrl+e", "run('editor')", "Write in your editor ($VISUAL or $EDITOR)"),
        Key("ctrl+g", "run('busy')", "What the next message does while the chat works"),
        Key("ctrl+o", "run('model')", "Choose the model and its effort"),
        Key("ctrl+r", "run('history')", "Search your earlier prompts, of all chats"),
        Key("ctrl+v,alt+v", "run('paste')", "Attach the picture of the clipboard"),
        Key("alt+e", "run('edit_last')", "Edit your last message and run it again"),
        Key("alt+q", "run('queue')", "Go to the queue"),
    ),
    "mcp": (
        Key("space,enter", "choose", "Use the server in this chat, or not", "Use"),
        Key("c", "connect", "Connect your account, in a browser", "Connect"),
        Key("d", "disconnect", "End your connection", "Disconnect"),
        Key("u", "use_default", "Use the servers that are on by default", "Default"),
        Key("t", "test", "Connect and list the tools; for administrators", "Test"),
        Key("r", "read", "Read the list again", "Read again"),
        Key("escape,q", "dismiss", "Back to the chat", "Back"),
    ),
    "policy": (
        Key("a,n", "add", "Add a rule of this chat", "Add"),
        Key("enter,e", "edit", "Change the rule", "Edit"),
        Key("d,delete", "remove", "Remove the rule, after a question", "Remove"),
        Key("r", "read", "Read the rules again", "Read again"),
        Key("escape,q", "dismiss", "Back to the chat", "Back"),
    ),
    "memory": (
        Key("a", "accept", "Accept it", "Accept"),
        Key("enter,e", "edit", "Change it; a proposed one is accepted", "Edit"),
        Key("d,delete", "remove", "Dismiss or delete it", "Dismiss/Delete"),
        Key("space", "switch", "Switch it on or off", "On/off"),
        Key("n", "add", "Write a note", "Add"),
        Key("K,shift+up", "move(-1)", "Move it up"),
        Key("J,shift+down", "move(1)", "Move it down"),
        Key("m", "choose", "Use none, notes, or proposals too", "Use"),
        Key("r", "read", "Read again"),
        Key("escape,q", "dismiss", "Back to the chat", "Back"),
    ),
    "changes": (
        Key("tab,s", "scope", "This turn, the chat, the working tree", "Scope"),
        Key("n", "file(1)", "The next file", "Next file"),
        Key("p", "file(-1)", "The file before"),
        Key("j", "hunk(1)", "The next change in the file", "Next change"),
        Key("k", "hunk(-1)", "The change before"),
        Key("r", "reload", "Read the changes again", "Refresh"),
        Key("escape,q", "close", "Back to the chat", "Back"),
    ),
}


AREA_TITLES: Final[Mapping[Area, str]] = {
    "anywhere": "Anywhere",
    "chat list": "In the chat list",
    "timeline": "In the messages",
    "answers": "When the chat asks for something",
    "queue": "In the queue",
    "composer": "In the message box",
    "changes": "In the changes",
    "plan": "In a plan",
    "mcp": "In the MCP servers",
    "policy": "In the tool policy",
    "memory": "In the memory",
}
_NAMES: Final[Mapping[str, str]] = {
    "escape": "Esc",
    "pageup": "PgUp",
    "pagedown": "PgDn",
    "slash": "/",
    "question_mark": "?",
    "left": "←",
    "right": "→",
    "up": "↑",
    "down": "↓",
}


def key_names(keys: str) -> str:
    """The keys as people write them: `ctrl+n,f2` is «Ctrl-N or F2», and nine digits are «1 to
    9»."""
    names = keys.split(",")
    if names == list("123456789"):
        return "1 to 9"
    return " or ".join(map(key_name, names))


def key_name(key: str) -> str:
    *modifiers, last = key.split("+")
    shown = _NAMES.get(last) or (last if len(last) == 1 and not modifiers else last.title())
    return "-".join((*map(str.title, modifiers), shown))


def short_key_name(key: str) -> str:
    """The short form for the last line: `ctrl+n` is «^N»."""
    return key_name(key).replace("Ctrl-", "^")


def bindings_of(area: Area) -> list[BindingType]:
    """For `BINDINGS` of the widget or screen of that area. `{key}` in an action is the key itself:
    such an action has a binding for each of its keys."""
    return [
        Binding(
            keys,
            key.action.format(key=keys),
            key.footer or key.text,
            show=bool(key.footer),
            priority=key.is_first,
        )
        for key in KEYS[area]
        for keys in (key.keys.split(",") if "{key}" in key.action else (key.keys,))
    ]


NUMBER_BINDINGS: Final[tuple[BindingType, ...]] = tuple(
    Binding(str(number), f"number({number})", show=False) for number in range(1, 10)
)
"""Keys for a list below a `SearchField`."""

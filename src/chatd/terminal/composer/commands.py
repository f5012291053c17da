"""The table of slash commands. Completion, help and docs/terminal.md are made from it."""

from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct

from chatd.domain.chat.commands import WhenBusy
from chatd.domain.chat.states import PublicStatus

# What a message does to a chat that is busy: the five behaviours of the API, in words.


class Behaviour(Struct, frozen=True, kw_only=True):
    """`word` is typed after /busy; `verb` says what Enter does."""

    value: WhenBusy
    word: str
    verb: str
    effect: str
    sent: str


BEHAVIOURS: Final[tuple[Behaviour, ...]] = (
    Behaviour(
        value="queue", word="queue", verb="queues", effect="it waits for its turn", sent="Queued"
    ),
    Behaviour(
        value="steer",
        word="steer",
        verb="steers",
        effect="it joins before the next model call",
        sent="It joins before the next step",
    ),
    Behaviour(
        value="interrupt",
        word="interrupt",
        verb="interrupts",
        effect="the answer stops, what was said is kept",
        sent="Interrupting",
    ),
    Behaviour(
        value="rollback",
        word="replace",
        verb="replaces the turn",
        effect="the running turn is dropped, this takes its place",
        sent="Replacing the turn",
    ),
    Behaviour(
        value="reject",
        word="refuse",
        verb="is refused while busy",
        effect="nothing is sent while the chat works",
        sent="Sent",
    ),
)


def behaviour_of(value: WhenBusy) -> Behaviour:
    return next(one for one in BEHAVIOURS if one.value == value)


def find_behaviour(word: str) -> Behaviour | None:
    """Find it by the word that is typed, or by the value of the API."""
    wanted = word.strip().lower()
    return next((one for one in BEHAVIOURS if wanted in (one.word, one.value)), None)


def next_behaviour(value: WhenBusy) -> WhenBusy:
    at = BEHAVIOURS.index(behaviour_of(value))
    return BEHAVIOURS[(at + 1) % len(BEHAVIOURS)].value


class BusyChoice(Struct, frozen=True, kw_only=True):
    """What is kept until it is changed, and what holds for the next message alone."""

    kept: WhenBusy = "queue"
    once: WhenBusy | None = None

    @property
    def value(self) -> WhenBusy:
        return self.kept if self.once is None else self.once

    def cycled(self) -> "BusyChoice":
        """The next behaviour, for one message."""
        following = next_behaviour(self.value)
        return BusyChoice(kept=self.kept, once=None if following == self.kept else following)

    def with_kept(self, value: WhenBusy) -> "BusyChoice":
        return BusyChoice(kept=value)

    def after_send(self) -> "BusyChoice":
        return BusyChoice(kept=self.kept)


CommandName = Literal[
    "new", "connect", "model", "effort", "mode", "plan", "workspace", "attach", "paste", "mcp",
    "policy",
    "busy", "continue", "edit", "regenerate", "version", "rate", "unsent", "retry", "interrupt",
    "hold", "queue", "compact", "diff", "undo", "usage", "fork", "rename", "archive", "unarchive",
    "pin", "unpin", "share", "unshare", "project", "remember", "memory",
    "export", "copy", "resume", "theme", "statusline", "help", "quit",
]  # fmt: skip

Need = Literal["nothing", "chat", "idle chat", "busy chat"]
"""In what state a command can be used."""


class SlashCommand(Struct, frozen=True, kw_only=True):
    """`argument` is shown in help; `choices` are the words that complete it."""

    name: CommandName
    effect: str
    argument: str = ""
    choices: tuple[str, ...] = ()
    need: Need = "nothing"

    @property
    def usage(self) -> str:
        return f"/{self.name} {self.argument}".rstrip()


_EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_BUSY: Final = tuple(one.word for one in BEHAVIOURS)

COMMANDS: Final[tuple[SlashCommand, ...]] = (
    SlashCommand(name="new", effect="Start a new chat"),
    SlashCommand(
        name="resume",
        argument="[words]",
        effect="Choose an earlier chat and go on with it; words find it",
    ),
    SlashCommand(name="model", argument="[name]", effect="Choose the model of the next messages"),
    SlashCommand(name="connect", effect="Connect a provider of models with its key"),
    SlashCommand(
        name="effort",
        argument="[level]",
        choices=_EFFORTS,
        effect="Choose how much the model thinks",
    ),
    SlashCommand(
        name="mode",
        argument="[plan|normal]",
        choices=("plan", "normal"),
        effect="In plan mode it looks around and proposes a plan, and changes nothing else",
    ),
    SlashCommand(name="plan", effect="Switch plan mode on; in plan mode, show the proposed plan"),
    SlashCommand(
        name="workspace",
        argument="[name]",
        effect="Choose where the tools of the chat act",
    ),
    SlashCommand(name="attach", argument="path", effect="Attach a file of this machine, as @path"),
    SlashCommand(
        name="paste", effect="Attach the picture of the clipboard, or insert the text of it"
    ),
    SlashCommand(name="mcp", effect="Choose and connect MCP servers"),
    SlashCommand(name="policy", effect="Show and change which tool calls ask first", need="chat"),
    SlashCommand(
        name="busy",
        argument="[behaviour]",
        choices=_BUSY,
        effect="Choose what messages do while the chat works, until you choose again",
    ),
    SlashCommand(
        name="continue",
        effect="Go on after an error, a cut answer or a held queue",
        need="idle chat",
    ),
    SlashCommand(name="edit", effect="Edit your last message and run it again", need="chat"),
    SlashCommand(
        name="regenerate",
        argument="[model]",
        effect="Answer your last message again, by another model if you name one",
        need="idle chat",
    ),
    SlashCommand(
        name="version",
        argument="[number]",
        effect="Show another version of the last message that was edited or answered again",
        need="idle chat",
    ),
    SlashCommand(
        name="rate",
        argument="up|down [comment]",
        effect="Rate the last answer; `none` takes the rating back",
        need="chat",
    ),
    SlashCommand(name="unsent", effect="Take back a message that was refused", need="chat"),
    SlashCommand(name="retry", effect="Send refused messages again", need="chat"),
    SlashCommand(name="interrupt", effect="Stop the answer, keep what was said", need="busy chat"),
    SlashCommand(name="hold", effect="Stop the answer and hold the queue", need="busy chat"),
    SlashCommand(name="queue", effect="Go to the queue: edit, send now, move, remove", need="chat"),
    SlashCommand(
        name="compact",
        effect="Replace the history by a summary for the model",
        need="idle chat",
    ),
    SlashCommand(
        name="diff",
        argument="[turn|chat|git]",
        choices=("turn", "chat", "git"),
        effect="Show what was changed",
        need="chat",
    ),
    SlashCommand(
        name="undo",
        effect="Put the files back that the last turn has changed, after a question",
        need="idle chat",
    ),
    SlashCommand(name="usage", effect="Show tokens and cost of this chat", need="chat"),
    SlashCommand(
        name="fork",
        argument="[workspace]",
        choices=("workspace",),
        effect="Copy this chat into a new one; `workspace`: with a copy of its workspace",
        need="chat",
    ),
    SlashCommand(
        name="rename",
        argument="[title]",
        effect="Rename this chat; without a title a model names it",
        need="chat",
    ),
    SlashCommand(name="archive", effect="Archive this chat", need="chat"),
    SlashCommand(name="unarchive", effect="Take this chat out of the archive", need="chat"),
    SlashCommand(name="pin", effect="Pin this chat above the others", need="chat"),
    SlashCommand(name="unpin", effect="Unpin this chat", need="chat"),
    SlashCommand(
        name="share", argument="[name]", effect="Let a user or a group read this chat", need="chat"
    ),
    SlashCommand(name="unshare", argument="name", effect="Stop sharing with them", need="chat"),
    SlashCommand(
        name="project",
        argument="[name|none]",
        effect="Put this chat into a project, or out of it; without a name, list them",
    ),
    SlashCommand(
        name="remember",
        argument="[text]",
        effect="Keep a note for all your chats; without a text, show them",
    ),
    SlashCommand(name="memory", effect="Show your notes and what models propose"),
    SlashCommand(
        name="export",
        argument="[path]",
        effect="Save this chat as a file: Markdown, or what can be imported if it ends in .jsonl",
        need="chat",
    ),
    SlashCommand(name="copy", effect="Copy the last answer", need="chat"),
    SlashCommand(
        name="theme",
        argument="[name]",
        choices=("dark", "light", "contrast", "contrast-light", "warm", "paper"),
        effect="Choose the colours; they are kept on this machine",
    ),
    SlashCommand(
        name="statusline",
        argument="[words]",
        effect="Choose what the line below the message box shows; it is kept on this machine",
    ),
    SlashCommand(name="help", effect="Show keys and commands"),
    SlashCommand(name="quit", effect="Leave; chats go on without you"),
)

BY_NAME: Final[Mapping[str, SlashCommand]] = {one.name: one for one in COMMANDS}
ALIASES: Final[Mapping[str, CommandName]] = {
    "stop": "interrupt", "exit": "quit", "changes": "diff", "cost": "usage",
    "models": "model", "title": "rename", "clear": "new", "sessions": "resume",
}  # fmt: skip
"""Other programs' words for the same thing. They work, and are not offered."""


class PlainText(Struct, frozen=True):
    """Text to send."""

    text: str


class CommandCall(Struct, frozen=True):
    """A command with the rest of its line."""

    command: SlashCommand
    argument: str


class UnknownCommand(Struct, frozen=True):
    """A word after a slash that is not a command."""

    word: str


def read_line(text: str) -> PlainText | CommandCall | UnknownCommand:
    """What a draft means. `//` at its beginning stands for a slash that is sent. A draft of several
    lines is never a command: it may be a pasted listing of paths."""
    stripped = text.strip()
    if stripped.startswith("//"):
        return PlainText(stripped[1:])
    if not stripped.startswith("/") or "\n" in stripped:
        return PlainText(stripped)
    word, _, argument = stripped[1:].partition(" ")
    name = ALIASES.get(word.lower(), word.lower())
    if (command := BY_NAME.get(name)) is not None:
        return CommandCall(command, argument.strip())
    return UnknownCommand(word)


def refusal_of(command: SlashCommand, status: PublicStatus | None) -> str:
    """Why the command cannot be used now; empty: it can. `status` is None in a new chat."""
    if command.need == "nothing":
        return ""
    if status is None:
        return "only in a chat"
    is_busy = status in BUSY_STATUSES
    if command.need == "idle chat" and status not in ("waiting", "error"):
        return "only while the chat waits"
    if command.need == "busy chat" and not is_busy:
        return "nothing is running"
    return ""


BUSY_STATUSES: Final[frozenset[PublicStatus]] = frozenset(
    {"pending", "running", "interrupting", "requires_action"}
)

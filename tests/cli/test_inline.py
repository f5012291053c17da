"""`chatd chat --inline`: what is printed of a turn, and the command in a real terminal."""

import shutil
from pathlib import Path

import msgspec
import pytest
from msgspec import Raw, Struct

from chatd.cli.chats.inline_chat import InlineRows, command_lines
from chatd.cli.chats.run_turn import SentMessage, turn_outcome
from chatd.client.state import ShownChat
from chatd.domain.chat.messages import PublicMessage
from chatd.domain.chat.parts import CommandPart, TextPart, ToolResultPart
from chatd.domain.ids import MessageId, ToolCallId
from tests.support.command_line import CHATD, ServerProcess
from tests.support.eventually import eventually
from tests.support.shown_chats import CHAT, NOW, answered, called, live, returned, said, shown
from tests.support.tmux import PROMPT, WAIT_S, TmuxTerminal, tmux_terminal

pytestmark = pytest.mark.timeout(240)

in_tmux = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")


class Chat(Struct):
    id: str


SENT = SentMessage(version=1, message_id=1)


def printed(*states: ShownChat) -> str:
    """All of it, one state after the other. A line stands in brackets."""
    rows = InlineRows(SENT)
    pieces = [piece for state in states for piece in rows.pieces(state)]
    return "".join(text if is_text else f"[{text}]" for text, is_text in pieces)


def writing(text: str, attempt: int = 1) -> ShownChat:
    return shown(said(1, "go"), status="running", live=live(TextPart(text=text), attempt=attempt))


@pytest.mark.parametrize(
    ("states", "text"),
    [
        ((writing("He"), writing("Hello"), shown(said(1, "go"), answered(2, "Hello!"))), "Hello!"),
        ((writing("He"), writing("He"), writing("Hell")), "Hell"),
        ((shown(said(1, "go"), answered(2, "Hello!")),), "Hello!"),
        (
            (writing("One"), writing("Two", attempt=2), shown(said(1, "go"), answered(2, "Two."))),
            "One[(The answer begins again.)]Two.",
        ),
        (
            (
                writing("I look"),
                shown(said(1, "go"), called(2, "execute", '{"command":"ls"}', "I look.")),
                shown(
                    said(1, "go"),
                    called(2, "execute", '{"command":"ls"}', "I look."),
                    returned(3, "execute", '{"exit_code":2}'),
                    status="running",
                    live=live(TextPart(text="It")),
                ),
            ),
            "I look.[→ execute  ls][  execute exited with 2]It",
        ),
    ],
    ids=["streamed", "nothing new", "at once", "begun again", "a call"],
)
def test_each_word_of_a_turn_is_printed_once(states: tuple[ShownChat, ...], text: str) -> None:
    assert printed(*states) == text


def command(result: str) -> tuple[PublicMessage, ...]:
    """A turn of a person's command."""
    call_id = ToolCallId("person-command-1")
    asked = PublicMessage(
        id=MessageId(1),
        chat_id=CHAT,
        role="user",
        content=(CommandPart(command="ls"),),
        created_at=NOW,
    )
    part = ToolResultPart(tool_call_id=call_id, tool_name="execute", result=Raw(result.encode()))
    report = PublicMessage(
        id=MessageId(3), chat_id=CHAT, role="tool", content=(part,), created_at=NOW
    )
    return asked, report


@pytest.mark.parametrize(
    ("result", "lines"),
    [
        ('{"exit_code":0,"output":"a\\nb\\n"}', ["a", "b"]),
        ('{"exit_code":3,"output":""}', ["(exit 3)"]),
        ('{"signal":"SIGTERM","output":"a"}', ["a", "(ended by SIGTERM)"]),
        ('{"error":"It is stopped."}', ["(It is stopped.)"]),
    ],
)
def test_a_command_of_the_person_shows_its_output_and_ends_its_turn(
    result: str, lines: list[str]
) -> None:
    messages = command(result)
    [part] = messages[1].content
    assert isinstance(part, ToolResultPart)
    assert command_lines(part) == lines
    state = shown(*messages)
    assert printed(state) == "".join(f"[{line}]" for line in lines)
    outcome = turn_outcome(state, SENT)
    assert outcome is not None
    assert (outcome.ending, int(outcome.exit_code)) == ("done", 0)


async def scrollback(terminal: TmuxTerminal) -> str:
    return await terminal.run("capture-pane", "-p", "-J", "-S", "-500")


async def until_back(terminal: TmuxTerminal, ended: int) -> str:
    """Until so many commands have ended and the shell waits; the whole scrollback."""
    whole = ""

    async def look() -> bool:
        nonlocal whole
        whole = await scrollback(terminal)
        return whole.count("\ncode=") == ended and whole.rstrip().endswith(PROMPT.strip())

    await eventually(look, within_s=WAIT_S)
    return whole


@in_tmux
async def test_a_chat_goes_into_the_scrollback_and_stays_there(
    server: ServerProcess, tmp_path: Path
) -> None:
    """An answer, an approval, a question and the end, in a real terminal."""
    rules = [{"tool": "list_agents", "action": "ask"}]
    server.request("PUT", "/settings/me/tool-policy", {"rules": rules})
    async with tmux_terminal(tmp_path, server.env, size=(80, 24)) as terminal:
        await terminal.type_command("echo", "before")
        await terminal.until_shown("code=0")
        await terminal.type_command(str(CHATD), "chat", "--inline")
        await terminal.until_shown("/help shows")
        await terminal.write("answer fast")
        await terminal.press("Enter")
        await terminal.until_shown("send you the result.")
        assert await terminal.state("alternate_on") == "0"
        await terminal.write("call list_agents")
        await terminal.press("Enter")
        await terminal.until_shown("Approve? y once, a always")
        await terminal.write("x")
        await terminal.press("Enter")
        await terminal.until_shown("Write y, n, or in some words")
        await terminal.write("y")
        await terminal.press("Enter")
        await terminal.until_shown("The tool `list_agents` answered")
        await terminal.write("/bogus")
        await terminal.press("Enter")
        await terminal.until_shown("there is no command /bogus here")
        await terminal.press("C-c")
        await terminal.until_shown("Ctrl-C again leaves")
        await terminal.press("C-d")
        whole = await until_back(terminal, 2)
        places = [
            whole.find(text)
            for text in ("before", "> answer fast", "send you the result.", "Allow list_agents?")
        ]
        assert places == sorted(places)
        assert -1 not in places
        assert await terminal.state("cursor_flag") == "1"
    server.request("PUT", "/settings/me/tool-policy", {"rules": []})


@in_tmux
async def test_control_c_interrupts_the_answer_and_a_chat_is_opened_again(
    slow_server: ServerProcess, tmp_path: Path
) -> None:
    """A server of its own, whose answer takes seconds."""
    server = slow_server
    async with tmux_terminal(tmp_path, server.env, size=(80, 24)) as terminal:
        await terminal.type_command(str(CHATD), "chat", "--inline")
        await terminal.until_shown("/help shows")
        await terminal.write("tell me a long story")
        await terminal.press("Enter")
        await terminal.until_shown("**One writer.**")
        await terminal.press("C-c")
        await terminal.until_shown("(Interrupted.)")
        await terminal.press("C-d")
        await until_back(terminal, 1)
        [chat] = msgspec.convert(server.request("GET", "/chats")["items"], list[Chat])
        await terminal.type_command(str(CHATD), "chat", "--inline", chat.id)

        whole = ""

        async def is_opened() -> bool:
            nonlocal whole
            whole = await scrollback(terminal)
            return whole.count("/help shows") == 2 and whole.rstrip().endswith("\n>")

        await eventually(is_opened, within_s=WAIT_S)
        assert whole.count("tell me a long story") > 1
        await terminal.press("C-c")
        await terminal.until_shown("Ctrl-C again leaves; the chat stays.")


def test_a_place_without_a_terminal_is_refused(server: ServerProcess) -> None:
    refused = server.call("chat", "--inline")
    assert (refused.code, "needs a terminal" in refused.err) == (2, True)
    here = server.call("chat", "--inline", "--here")
    assert (here.code, "--inline has no --here" in here.err) == (2, True)

"""Which scene the demo model plays. A message that is a request of `scripts.toml` plays its scene;
any other message gets an answer that lists the requests.

A scene follows from the request alone, so that it continues after a crash.
"""

import random
import re
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Final

import msgspec
from msgspec import UNSET, Struct

from chatd.domain.ids import ToolCallId
from chatd.domain.model.protocol import (
    ForcedTool,
    ModelRequest,
    PromptCall,
    PromptFile,
    PromptMessage,
    PromptResult,
    PromptText,
    ProviderFault,
    SourceFound,
    ToolSpec,
)
from chatd.domain.prompt.compaction import SUMMARY_INSTRUCTION, SUMMARY_PREFIX
from chatd.domain.text import clip
from chatd.providers.demo.forms import POLITE_OPENING, make_title, parse_object, sample_json
from chatd.providers.demo.tool_scenes import (
    CallTool,
    CompletedCall,
    DemoScene,
    DemoTurn,
    RefuseAnswer,
    SetPace,
    ThinkText,
    fix_test,
    list_templates,
    run_command,
    show_result,
)

_STORY_LINES: Final = 3600
STORY_PACE: Final = SetPace(0.02, by_line=True)
"""A line a second at the default speed. An hour of more or longer lines would outgrow the preview
of a running answer (`MAX_PREVIEW_BYTES`)."""

# chatd's own tools. Any other tool is one that a client has declared.
_CHATD_TOOLS: Final = """
ask_user_question attach_file close_agent computer create_workspace edit_files execute
interrupt_agent list_agents list_subagent_models list_templates message_agent process_list
process_output process_signal propose_plan read_file read_skill read_skill_file read_template
spawn_agent start_workspace stop_workspace wait_agent write_file
"""
_POLITE_END: Final = re.compile(r"(?:,? please)?[\s.!?]*$", re.IGNORECASE)
_INJECTED: Final = re.compile(
    r"<(workspace-context|instructions-update|system-reminder)>.*?</\1>", re.DOTALL
)
_CONTINUE: Final = re.compile(r"(please\s+)?(continue|go on|carry on|resume)[\s.!]*", re.IGNORECASE)
_SUMMARY_REQUEST: Final = re.compile(r"^write a summary\b", re.IGNORECASE | re.MULTILINE)
_CHAT_EXCERPT: Final = re.compile(r"<chat>\s(.*)\s</chat>", re.DOTALL)
_MAX_QUOTED_CHARS: Final = 600
_MIN_TOOL_WORD_CHARS: Final = 4


class DemoScript(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    request: str
    also: str = ""
    shows: str = ""
    pace: float = 1.0
    thoughts: str = ""
    text: str = ""
    sources: tuple[str, ...] = ()
    refusal: str = ""

    @property
    def scene(self) -> DemoScene:
        return (
            SetPace(self.pace),
            *([ThinkText(self.thoughts)] if self.thoughts else []),
            *([self.text] if self.text else []),
            *(SourceFound(url=url, title="An example") for url in self.sources),
            *([RefuseAnswer(self.refusal)] if self.refusal else []),
        )


class _ScriptFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    welcome: str
    answer: str
    while_i_answer: str
    recovered: str
    story: tuple[str, ...]
    scripts: tuple[DemoScript, ...]


_FILE: Final = msgspec.toml.decode(
    resources.files("chatd.providers.demo").joinpath("scripts.toml").read_bytes(), type=_ScriptFile
)


def find_script(prompt: str) -> DemoScript | None:
    """The script that the prompt asks for, apart from a polite opening and end."""
    text = _POLITE_END.sub("", POLITE_OPENING.sub("", " ".join(prompt.split()))).lower()
    scripts = (one for one in _FILE.scripts if text == one.request or re.fullmatch(one.also, text))
    return next(scripts, None) if text else None


def choose_scene(request: ModelRequest, *, seed: int, failures_left: int) -> DemoScene:
    """`failures_left`: how often the model still fails if the prompt asks for an error."""
    turn = _read_turn(request)
    if request.output_schema is not UNSET:
        return (SetPace(0.0), sample_json(bytes(request.output_schema), turn.prompt))
    if (excerpt := _CHAT_EXCERPT.fullmatch(turn.prompt)) is not None:
        return (SetPace(0.0), make_title(excerpt[1]))
    match request.tool_choice:
        case ForcedTool(name=name) if name in turn.tools:
            return _call_client_tool(turn, turn.tools[name])
        case "required" if request.tools:
            return _call_client_tool(turn, request.tools[0])
        case _ if SUMMARY_INSTRUCTION in turn.prompt:
            return (_summarize(request),)
        case _:
            return _play_script(turn, seed, failures_left)


def _play_script(turn: DemoTurn, seed: int, failures_left: int) -> DemoScene:
    if turn.calls and turn.calls[-1].name not in _CHATD_TOOLS.split():
        return show_result(turn.calls[-1])
    script = find_script(turn.prompt)
    match script and script.request:
        case "tell me a long story":
            texts = random.Random(f"{seed}:{turn.prompt}").sample(_FILE.story, len(_FILE.story))
            lines = "\n".join(f"{at + 1}. {texts[at % len(texts)]}" for at in range(_STORY_LINES))
            return (STORY_PACE, f"Interrupt me at any time.\n\n{lines}\n\nThat is all.")
        case "fix the failing test":
            return fix_test(turn)
        case "run a command" if "execute" in turn.tools or not _client_tools(turn):
            return run_command(turn, "date && uname -sr && pwd", "I'll run a command.")
        case "list the files":
            return run_command(turn, "pwd && ls -la | head -n 50", "I'll list the files.")
        case "list the templates":
            return list_templates(turn)
        case "show me a permanent error":
            message = "the demo model was asked to refuse the key"
            return (ProviderFault(message=message, status_code=401, type="authentication_error"),)
        case "show me an error":
            return _fail(failures_left)
        case _ if script is not None and len(script.scene) > 1:
            return script.scene
        case _:
            return _answer(turn)


def _fail(failures_left: int) -> DemoScene:
    if failures_left <= 0:
        return (_FILE.recovered,)
    if failures_left % 2 == 0:
        message = "the demo model was asked to fail"
        return (ProviderFault(message=message, status_code=529, type="overloaded_error"),)
    message = "the demo model was asked to fail in the middle of an answer"
    return ("This answer begins, and then it bre", ProviderFault(message=message, incomplete=True))


def _answer(turn: DemoTurn) -> DemoScene:
    if not turn.calls and (tools := _client_tools(turn)):
        return _call_client_tool(turn, tools[0])
    lines = clip(turn.prompt, _MAX_QUOTED_CHARS).splitlines() or ["(nothing)"]
    quote = "\n".join(f"> {line}" for line in lines)
    if turn.files:
        quote += f"\n\nand attached {', '.join(turn.files[:5])}."
    rows = "\n".join(f"| `{one.request}` | {one.shows} |" for one in _FILE.scripts if one.shows)
    text = _FILE.answer.format(quote=quote, requests=rows)
    return (text if turn.number > 1 else f"{_FILE.welcome}{text}{_FILE.while_i_answer}",)


def _client_tools(turn: DemoTurn) -> list[ToolSpec]:
    """Tools that a client has declared; first those that the prompt names, by a word of them."""
    named = set(re.findall(r"[a-z]+", turn.prompt.lower()))

    def is_unnamed(tool: ToolSpec) -> bool:
        words = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", tool.name).lower())
        return not any(len(word) >= _MIN_TOOL_WORD_CHARS and word in named for word in words)

    tools = [tool for name, tool in turn.tools.items() if name not in _CHATD_TOOLS.split()]
    return sorted(tools, key=is_unnamed)


def _call_client_tool(turn: DemoTurn, tool: ToolSpec) -> DemoScene:
    args = parse_object(sample_json(bytes(tool.input_schema), turn.prompt))
    return (f"I'll call the tool `{tool.name}`.", CallTool(tool.name, args))


# What a request says


def _read_turn(request: ModelRequest) -> DemoTurn:
    starts = [at for at, message in enumerate(request.messages) if _is_asked(message)]
    # After an interrupt, "continue" resumes the turn before it.
    if len(starts) > 1 and _CONTINUE.fullmatch(_user_text(request.messages[starts[-1]])):
        starts.pop()
    turn = request.messages[starts[-1] if starts else 0 :]
    files = [part for message in turn for part in message.parts if isinstance(part, PromptFile)]
    prompt = _user_text(turn[0]) if starts else ""
    if prompt.startswith(SUMMARY_PREFIX.strip()):
        prompt = _list_requests(turn[:1])[-1]
    return DemoTurn(
        prompt=prompt,
        number=len(starts),
        files=tuple(file.name or file.media_type for file in files),
        calls=tuple(_completed_calls(turn)),
        tools={} if request.tool_choice == "none" else {tool.name: tool for tool in request.tools},
    )


def _is_asked(message: PromptMessage) -> bool:
    """Whether the user wrote it: it is not only a report of chatd to the model."""
    has_file = any(isinstance(part, PromptFile) for part in message.parts)
    return message.role == "user" and (has_file or _user_text(message) != "")


def _user_text(message: PromptMessage) -> str:
    texts = (part.text for part in message.parts if isinstance(part, PromptText))
    return _INJECTED.sub("", "\n".join(texts)).strip()


def _completed_calls(messages: Sequence[PromptMessage]) -> Iterator[CompletedCall]:
    calls: dict[ToolCallId, PromptCall] = {}
    for part in (part for message in messages for part in message.parts):
        if isinstance(part, PromptCall):
            calls[part.id] = part
        elif isinstance(part, PromptResult) and (call := calls.get(part.id)) is not None:
            args = parse_object(bytes(call.input))
            yield CompletedCall(name=call.name, args=args, text=part.text, is_error=part.is_error)


def _list_requests(messages: Sequence[PromptMessage]) -> list[str]:
    """What the user asked for, oldest first. An earlier summary lists it line by line."""
    found: list[str] = []
    for text in (_user_text(message) for message in messages if message.role == "user"):
        if text.startswith(SUMMARY_PREFIX.strip()):
            found += [line[2:] for line in text.splitlines() if line.startswith("- ")]
        else:
            found.append(_SUMMARY_REQUEST.split(text)[0].strip())
    return [request for request in found if request] or ["(nothing)"]


def _summarize(request: ModelRequest) -> str:
    """A script knows only what the user asked for, so the summary lists that."""
    asked = _list_requests(request.messages)
    listed = "\n".join(f"- {text[:200]}" for text in asked[-20:])
    return (
        f"Goal: {asked[-1][:500]}\n\nFacts: the chat was with the demo model, which plays scripts."
        f" The user wrote, oldest first:\n{listed}\n\nProgress: all but the last was answered.\n\n"
        f"Next: {asked[-1][:500]}"
    )

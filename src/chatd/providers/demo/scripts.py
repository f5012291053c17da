"""What scenes are made of: the texts of `scripts.toml`, the items of a scene, and the turn that a
request continues."""

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Final, Literal

import msgspec
from msgspec import Struct

from chatd.domain.ids import ToolCallId
from chatd.domain.model.protocol import (
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
from chatd.domain.prompt.compaction import SUMMARY_PREFIX
from chatd.domain.prompt.instructions import withdrawal_text
from chatd.domain.text import Json, parse_json
from chatd.providers.tool_schema import is_object

_INJECTED: Final = re.compile(
    r"<(workspace-context|instructions-update|system-reminder)>.*?</\1>", re.DOTALL
)
_CONTINUE: Final = re.compile(r"(please\s+)?(continue|go on|carry on|resume)[\s.!]*", re.IGNORECASE)

_UPDATE: Final = re.compile(r"<instructions-update>.*?</instructions-update>", re.DOTALL)
_MODE_ENDED: Final = withdrawal_text("modes")
_PLAN_PATH: Final = re.compile(r"~/\.chatd/plans/PLAN-[0-9a-f-]{36}\.md")

Object = Mapping[str, object]


class ThinkText(Struct, frozen=True):
    text: str


class CallTool(Struct, frozen=True):
    name: str
    args: Object = {}


class SetPace(Struct, frozen=True):
    """Scales the configured speed of the scene; 0 plays it without pauses. With `by_line` a token
    is a line."""

    factor: float
    by_line: bool = False


# A string is text of the answer. A fault fails the stream.
DemoScene = tuple[str | ThinkText | CallTool | SourceFound | SetPace | ProviderFault, ...]


class DemoScript(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    request: str
    also: str = ""
    shows: str = ""
    pace: float = 1.0
    thoughts: str = ""
    text: str = ""
    sources: tuple[str, ...] = ()

    @property
    def scene(self) -> DemoScene:
        return (
            SetPace(self.pace),
            *([ThinkText(self.thoughts)] if self.thoughts else []),
            *([self.text] if self.text else []),
            *(SourceFound(url=url, title="An example") for url in self.sources),
        )


class DemoStep(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A step of the walk that fixes a test. It is repeated until each call has succeeded `runs`
    times in the turn; the output must then contain `expects`."""

    project: Literal["own", "template", "any"] = "any"
    thoughts: str = ""
    text: str
    calls: tuple[CallTool, ...]
    runs: int = 1
    expects: str = ""

    @property
    def scene(self) -> DemoScene:
        return (*([ThinkText(self.thoughts)] if self.thoughts else []), self.text, *self.calls)


class DemoTask(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A subagent that the demo model starts."""

    type: str
    title: str
    prompt: str

    @property
    def call(self) -> CallTool:
        return CallTool(
            "spawn_agent", {"type": self.type, "title": self.title, "prompt": self.prompt}
        )


class DemoTexts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    welcome: str
    answer: str
    while_i_answer: str
    summary: str
    no_tools: str
    given_up: str
    fixed: str
    changed: str
    plan: str
    reviewed: str
    ask_first: str
    run_answer: str
    not_answered: str
    not_approved: str
    approved: str
    questions: tuple[Object, ...]
    story: tuple[str, ...]
    walk: tuple[DemoStep, ...]
    team: tuple[DemoTask, ...]
    scripts: tuple[DemoScript, ...]


TEXTS: Final = msgspec.toml.decode(
    resources.files("chatd.providers.demo").joinpath("scripts.toml").read_bytes(), type=DemoTexts
)


class CompletedCall(Struct, frozen=True, kw_only=True):
    """A tool call of this turn with its result."""

    name: str
    args: Object
    text: str
    is_error: bool

    @property
    def output(self) -> str:
        """What a user wants to read of the result."""
        result = parse_object(self.text)
        shown = result.get("output") or result.get("error")
        return (shown if isinstance(shown, str) else self.text).strip()

    @property
    def failed(self) -> bool:
        """Tools report an error by the flag or by a field `error`."""
        return self.is_error or bool(parse_object(self.text).get("error"))


class DemoTurn(Struct, frozen=True, kw_only=True):
    prompt: str
    number: int
    calls: tuple[CompletedCall, ...]
    tools: Mapping[str, ToolSpec]
    plan_path: str = ""
    """Empty outside of plan mode."""

    @property
    def is_planning(self) -> bool:
        return self.plan_path != ""

    def find_calls(self, wanted: CallTool) -> list[CompletedCall]:
        """Calls of a tool with at least these arguments, oldest first."""
        items = wanted.args.items()
        return [
            call
            for call in self.calls
            if call.name == wanted.name and all(call.args.get(key) == arg for key, arg in items)
        ]


def read_turn(request: ModelRequest) -> DemoTurn:
    starts = [at for at, message in enumerate(request.messages) if _is_asked(message)]
    # After an interrupt, "continue" resumes the turn before it.
    if len(starts) > 1 and _CONTINUE.fullmatch(_user_text(request.messages[starts[-1]])):
        starts.pop()
    turn = request.messages[starts[-1] if starts else 0 :]
    return DemoTurn(
        prompt=list_requests(turn[:1])[-1],
        number=len(starts),
        calls=tuple(_completed_calls(turn)),
        tools={} if request.tool_choice == "none" else {tool.name: tool for tool in request.tools},
        plan_path=_find_plan_path(request.messages),
    )


def _find_plan_path(messages: Sequence[PromptMessage]) -> str:
    """Where the newest instructions tell to write the plan; empty without plan mode."""
    path = ""
    for message in messages:
        for text in (part.text for part in message.parts if isinstance(part, PromptText)):
            told = [text] if message.role == "system" else _UPDATE.findall(text)
            for instructions in told:
                if (found := _PLAN_PATH.search(instructions)) is not None:
                    path = found[0]
                elif _MODE_ENDED in instructions:
                    path = ""
    return path


def list_requests(messages: Sequence[PromptMessage]) -> list[str]:
    """What the user asked for, oldest first. A summary lists it line by line."""
    found: list[str] = []
    for text in (_user_text(message) for message in messages if message.role == "user"):
        is_summary = text.startswith(SUMMARY_PREFIX.strip())
        listed = [line[2:] for line in text.splitlines() if line.startswith("- ")]
        found += listed if is_summary else [text]
    asked = [text for text in found if text] or ["(nothing)"]
    return [text for text in asked if not _CONTINUE.fullmatch(text)] or asked


def parse_object(text: Json | str) -> dict[str, object]:
    """The JSON object in `text`; empty if there is none."""
    value = parse_json(text)
    return value if is_object(value) else {}


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
            args = parse_object(call.input)
            yield CompletedCall(name=call.name, args=args, text=part.text, is_error=part.is_error)

"""The scenes of the demo model: the texts of `demo_scripts.toml`, the items of a scene, the turn
that a request continues, and the scenes that call tools.

The calls that a turn has completed decide which call comes next. A failed call is repeated once; if
it fails again, the model reports the tool's answer.
"""

import re
import shlex
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
from chatd.domain.text import Json, clip, parse_json
from chatd.providers.sse import DECODE_ERRORS
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
    no_desktop: str
    page: str
    at_desktop: DemoTask
    seen: str
    clicked: str
    scripts: tuple[DemoScript, ...]


TEXTS: Final = msgspec.toml.decode(
    resources.files("chatd.providers").joinpath("demo_scripts.toml").read_bytes(), type=DemoTexts
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
    """The path that the newest instructions name for the plan; empty outside of plan mode."""
    path = ""
    for message in messages:
        for text in (part.text for part in message.parts if isinstance(part, PromptText)):
            updates = [text] if message.role == "system" else _UPDATE.findall(text)
            for instructions in updates:
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
    """True if the user wrote it; false for a message in which chatd informs the model."""
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


# A sample call, a command in a workspace, a failing test that is found and fixed, and its plan.

_COMMAND: Final = "date && uname -sr && pwd && ls -la | head -n 50"
_LIST: Final = "pwd && ls -1 | head -n 20; python3 --version"
_SAMPLES: Final[Object] = {"integer": 1, "number": 1, "boolean": False, "array": [], "object": {}}
_MAX_TRIES: Final = 2
_MAX_SHOWN_CHARS: Final = 2000


class TemplateChoice(Struct, frozen=True):
    id: str
    name: str = ""


class _TemplateList(Struct, frozen=True):
    templates: tuple[TemplateChoice, ...] = ()


def call_sample(turn: DemoTurn, tool: ToolSpec) -> DemoScene:
    """A call with a fixed argument for each property, by its type."""
    if turn.calls:
        return show_result(turn.calls[-1])
    fields = parse_object(tool.input_schema).get("properties")
    args: dict[str, object] = {}
    for name, field in (fields if is_object(fields) else {}).items():
        kind = field.get("type") if is_object(field) else None
        args[name] = _SAMPLES.get(str(kind), "sample")
    return (f"I'll call the tool `{tool.name}`.", CallTool(tool.name, args))


def run_command(turn: DemoTurn) -> DemoScene:
    return execute_first(turn, _COMMAND, "I'll run a command.") or show_result(turn.calls[-1])


def fix_test(turn: DemoTurn) -> DemoScene:
    needed = ("execute", "read_file", "write_file", "edit_files")
    if missing := [f"`{name}`" for name in needed if name not in turn.tools]:
        return (TEXTS.no_tools.format(tools=", ".join(missing)),)
    if scene := execute_first(turn, _LIST, "I'll list the files of the workspace first."):
        return scene
    listing = turn.find_calls(CallTool("execute", {"command": _LIST}))[-1]
    home, *names = listing.output.splitlines() or [""]
    if not home.startswith("/"):
        return _give_up("I cannot read the listing of this workspace.", listing)
    if "basket.py" in names:
        return _fix_project(turn, home, is_own=False)
    return _fix_project(turn, f"{home.rstrip('/')}/chatd-demo", is_own=True)


def make_plan(turn: DemoTurn) -> DemoScene:
    """In plan mode: look, write the plan of `fix_test`, propose it. Nothing else is changed."""
    if scene := execute_first(
        turn, _LIST, "In plan mode I change nothing. I'll look around first."
    ):
        return scene
    writes = turn.find_calls(CallTool("write_file"))
    if not any(not call.failed for call in writes):
        if len(writes) >= _MAX_TRIES:
            return _give_up("I cannot write the plan.", writes[-1])
        args = {"path": turn.plan_path, "content": TEXTS.plan.lstrip()}
        return ("I know enough for a plan. I'll write it.", CallTool("write_file", args))
    proposals = turn.find_calls(CallTool("propose_plan"))
    if len(proposals) >= _MAX_TRIES:
        return _give_up("I cannot propose the plan.", proposals[-1])
    return ("Here is my plan.", CallTool("propose_plan"))


def show_result(call: CompletedCall, outcome: str = "", ending: str = "") -> DemoScene:
    outcome = outcome or ("That failed." if call.failed else "Done.")
    shown = clip(call.output, _MAX_SHOWN_CHARS).replace("```", "'''")
    return (f"{outcome} The tool `{call.name}` answered:\n\n```\n{shown}\n```{ending}",)


def _give_up(outcome: str, call: CompletedCall) -> DemoScene:
    return show_result(call, outcome, TEXTS.given_up)


def execute_first(turn: DemoTurn, command: str, text: str) -> DemoScene | None:
    """The next scene towards a result of the command; None once its last call has succeeded."""
    if "execute" not in turn.tools:
        return (TEXTS.no_tools.format(tools="`execute`"),)
    run = CallTool("execute", {"command": command})
    if not (tries := turn.find_calls(run)):
        return (text, run)
    if not tries[-1].failed:
        return None
    last = turn.calls[-1]
    text, wanted = _recover(last, run)
    # A tool that answered with an error as result, such as a failed build, fails again.
    in_vain = wanted.name == last.name and last.failed and not last.is_error
    is_used_up = wanted is not run and len(turn.find_calls(CallTool(wanted.name))) >= _MAX_TRIES
    if wanted.name not in turn.tools or in_vain or is_used_up:
        return _give_up("I have no workspace that I can run commands in.", last)
    return (text, wanted)


def _recover(last: CompletedCall, run: CallTool) -> tuple[str, CallTool]:
    """The call that follows when there was no result yet. The error of a tool names the tool that
    helps."""
    if last.name == "list_templates" and (template := choose_template(last)) is not None:
        args = {"template_id": template.id, "name": "demo"}
        text = f"I'll create a workspace from the template `{template.name}`. It takes a moment."
        return text, CallTool("create_workspace", args)
    if last.name == "execute" and "start_workspace" in last.text:
        return "The workspace is stopped. I'll start it.", CallTool("start_workspace")
    if last.name == "execute" and "create_workspace" in last.text:
        text = "The chat has no workspace yet. I'll list the templates."
        return text, CallTool("list_templates")
    is_repeated = last.failed or last.name == "list_templates"
    return "Let me try again.", CallTool(last.name, last.args) if is_repeated else run


def choose_template(call: CompletedCall) -> TemplateChoice | None:
    try:
        found = msgspec.json.decode(call.text, type=_TemplateList).templates
    except DECODE_ERRORS:
        return None
    return max(found, key=lambda template: template.name == "demo", default=None)


def _fix_project(turn: DemoTurn, directory: str, *, is_own: bool) -> DemoScene:
    """`is_own`: the demo model writes the project itself; otherwise the template has it."""
    walk = msgspec.json.encode(TEXTS.walk).decode()
    walk = walk.replace("{directory}", msgspec.json.encode(directory).decode()[1:-1])
    walk = walk.replace("{test}", "test_basket.py" if is_own else "-m pytest -q")
    for step in msgspec.json.decode(walk, type=tuple[DemoStep, ...]):
        if step.project == ("template" if is_own else "own"):
            continue
        made = [call for wanted in step.calls for call in turn.find_calls(wanted)]
        done = [call for call in made if not call.failed]
        if len(done) < len(step.calls) * step.runs:
            is_used_up = len(made) >= len(step.calls) * step.runs * _MAX_TRIES
            return _give_up("That did not work.", made[-1]) if is_used_up else step.scene
        if step.expects not in done[step.runs - 1].output:
            return _give_up("The tests did not end as my script expects.", done[-1])
    diff = TEXTS.changed if is_own else clip(turn.calls[-1].output, _MAX_SHOWN_CHARS)
    return (TEXTS.fixed.format(diff=diff, path=f"{directory}/basket.py"),)


# A question to the user, then a command that may need an approval.


class _Answer(Struct, frozen=True):
    chosen: tuple[str, ...] = ()
    text: str = ""


class _Answers(Struct, frozen=True):
    answers: tuple[_Answer, ...] = ()


def ask_first(turn: DemoTurn) -> DemoScene:
    if "ask_user_question" not in turn.tools:
        return (TEXTS.no_tools.format(tools="`ask_user_question`"),)
    asked = turn.find_calls(CallTool("ask_user_question"))
    if not asked:
        questions = msgspec.to_builtins(TEXTS.questions)
        ask = CallTool("ask_user_question", {"questions": questions})
        return _prepare_workspace(turn) or (TEXTS.ask_first, ask)
    if asked[-1].failed or not (choice := _chosen(asked[-1])):
        return (TEXTS.not_answered,)
    command = f"echo {shlex.quote(choice)} > chatd-demo.txt && cat chatd-demo.txt"
    tried = turn.find_calls(CallTool("execute", {"command": command}))
    if tried and tried[-1].is_error and "so it did not run" in tried[-1].text:
        return (TEXTS.not_approved.format(reason=tried[-1].output),)
    scene = execute_first(turn, command, TEXTS.run_answer.format(choice=choice))
    return scene or show_result(turn.calls[-1], ending=TEXTS.approved)


def _prepare_workspace(turn: DemoTurn) -> DemoScene | None:
    """Create the workspace first, so that the user is asked to approve the command only once."""
    if not {"list_templates", "create_workspace"} <= turn.tools.keys():
        return None
    if not (listed := turn.find_calls(CallTool("list_templates"))):
        return ("I'll look for a workspace first.", CallTool("list_templates"))
    template = choose_template(listed[-1])
    if template is None or turn.find_calls(CallTool("create_workspace")):
        return None
    return (CallTool("create_workspace", {"template_id": template.id, "name": "demo"}),)


def _chosen(call: CompletedCall) -> str:
    """The label or the words of the first answer."""
    try:
        answers = msgspec.json.decode(call.text, type=_Answers).answers
    except DECODE_ERRORS:
        return ""
    return next((" ".join((*one.chosen, one.text)).strip() for one in answers), "")


# Subagents: all start in one step; the scene waits for them and quotes their reports.

_NEEDED: Final = ("spawn_agent", "wait_agent")
_MAX_WAITS: Final = 3


def lead_team(turn: DemoTurn) -> DemoScene:
    if missing := [f"`{name}`" for name in _NEEDED if name not in turn.tools]:
        return (TEXTS.no_tools.format(tools=", ".join(missing)),)
    started = [call for task in TEXTS.team for call in turn.find_calls(task.call)[-1:]]
    if len(started) < len(TEXTS.team):
        calls = (task.call for task in TEXTS.team)
        return ("I'll give this to two subagents, which work at the same time.", *calls)
    if failed := [call for call in started if call.failed]:
        return (f"I could not start a subagent: {failed[-1].output}{TEXTS.given_up}",)
    waits = [wait for call in started if (wait := _next_wait(turn, call)) is not None]
    if waits:
        return ("They are at work. I'll wait for their reports.", *waits)
    return (TEXTS.reviewed.format(reports="\n\n".join(_report(turn, call) for call in started)),)


def _wait(spawned: CompletedCall) -> CallTool:
    return CallTool("wait_agent", {"chat_id": parse_object(spawned.text).get("chat_id")})


def _next_wait(turn: DemoTurn, spawned: CompletedCall) -> CallTool | None:
    """None once the subagent has reported, or after `_MAX_WAITS` waits."""
    waits = turn.find_calls(_wait(spawned))
    is_over = waits and not parse_object(waits[-1].text).get("timed_out")
    return None if is_over or len(waits) >= _MAX_WAITS else _wait(spawned)


def _report(turn: DemoTurn, spawned: CompletedCall) -> str:
    found = parse_object(turn.find_calls(_wait(spawned))[-1].text)
    said = found.get("report") or found.get("last_error") or found.get("error") or "still at work"
    quoted = "\n".join(f"> {line}" for line in str(said).strip().splitlines())
    return f"**{parse_object(spawned.text).get('title')}**\n\n{quoted}"


# A desktop: a subagent opens a window in it, clicks, and shows the picture.

_FIND_DESKTOP: Final = "for name in Xvnc chromium xterm; do command -v $name; done; true"
_OPEN_WINDOW: Final = (
    f'cat > page.html <<"END"\n{TEXTS.page}\nEND\n'
    # Debian's command reads files of /etc that a sandbox does not have.
    "browser=/usr/lib/chromium/chromium\n"
    '[ ! -x "$browser" ] || exec "$browser" --no-sandbox --disable-gpu --no-first-run'
    " --disable-dev-shm-usage --user-data-dir=/tmp/demo-browser --window-position=0,0"
    ' --window-size=1280,720 --app="file://$PWD/page.html" 2> browser.log\n'
    "exec xterm -geometry 200x50+0+0 -e sh -c"
    " 'echo Click, or press a key; read -r _; echo Done; sleep 600'"
)
_DESKTOP_STEPS: Final[Sequence[tuple[str, CallTool]]] = (
    ("I'll look at the desktop, which starts it.", CallTool("computer", {"action": "screenshot"})),
    (
        "I'll open a page that I wrote myself.",
        CallTool("execute", {"command": _OPEN_WINDOW, "run_in_background": True}),
    ),
    ("It needs a moment.", CallTool("computer", {"action": "wait", "duration": 4})),
    ("I'll click it.", CallTool("computer", {"action": "left_click", "coordinate": [640, 300]})),
    ("Did it work?", CallTool("computer", {"action": "wait", "duration": 1})),
    ("This is the picture.", CallTool("attach_screenshot", {"name": "desktop.png"})),
)


def show_desktop(turn: DemoTurn) -> DemoScene:
    if missing := [f"`{name}`" for name in _NEEDED if name not in turn.tools]:
        return (TEXTS.no_tools.format(tools=", ".join(missing)),)
    if scene := execute_first(turn, _FIND_DESKTOP, "I'll look for the programs of a desktop."):
        return scene
    found = turn.find_calls(CallTool("execute", {"command": _FIND_DESKTOP}))[-1]
    if "Xvnc" not in found.output:
        return (TEXTS.no_desktop,)
    started = turn.find_calls(TEXTS.at_desktop.call)[-1:]
    if not started:
        return ("A subagent uses the desktop.", TEXTS.at_desktop.call)
    if started[0].failed:
        return (f"I could not start a subagent: {started[0].output}{TEXTS.given_up}",)
    if (wait := _next_wait(turn, started[0])) is not None:
        return ("I'll wait for its report.", wait)
    return (TEXTS.seen.format(report=_report(turn, started[0])),)


def use_desktop(turn: DemoTurn) -> DemoScene:
    """What the subagent does."""
    if "computer" not in turn.tools:
        return (TEXTS.no_tools.format(tools="`computer`"),)
    for text, call in _DESKTOP_STEPS:
        done = turn.find_calls(call)
        if not done:
            return (text, call)
        if done[-1].failed:
            return _give_up("That did not work.", done[-1])
    return (TEXTS.clicked,)

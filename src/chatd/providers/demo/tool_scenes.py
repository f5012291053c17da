"""Scenes that call tools: a sample call, a command in a workspace, a failing test that is found and
fixed, and the plan for that.

The calls that a turn has completed decide the next one. A call that failed is made once more; then
the model reports what the tool answered.
"""

from typing import Final

import msgspec
from msgspec import Struct

from chatd.domain.model.protocol import ToolSpec
from chatd.domain.text import clip
from chatd.providers.demo.scripts import (
    TEXTS,
    CallTool,
    CompletedCall,
    DemoScene,
    DemoStep,
    DemoTurn,
    Object,
    parse_object,
)
from chatd.providers.sse import DECODE_ERRORS
from chatd.providers.tool_schema import is_object

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

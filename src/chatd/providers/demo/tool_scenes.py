"""Scenes that call tools: a command in a workspace, and a failing test that is found and fixed.

The calls that a turn has completed decide the next one. A call that failed is made once more; then
the model reports what the tool answered.
"""

import shlex
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct

from chatd.domain.model.protocol import ProviderFault, SourceFound, ToolSpec
from chatd.providers.demo.forms import parse_object
from chatd.providers.sse import DECODE_ERRORS

_WRONG: Final = "    return amount - discount_percent"
_RIGHT: Final = "    return amount * (100 - discount_percent) / 100"
CODE: Final = f"def total(prices, discount_percent=0):\n    amount = sum(prices)\n{_WRONG}\n"
FIXED: Final = CODE.replace(_WRONG, _RIGHT)
_TEST: Final = """\
from basket import total

for prices, percent, expected in ([10, 20, 30], 0, 60), ([100, 100], 10, 180), ([], 0, 0):
    found = total(prices, discount_percent=percent)
    assert found == expected, f"{found} is not {expected}"
"""
_REPORT: Final = """\
All three tests pass now.

```diff
{diff}
```

**What was wrong:** the discount was subtracted as an amount of money. It is a percentage.

**Where:** `{path}`

chatd committed each of my steps before the next one began. Ask me again in a new chat, and in the \
middle interrupt me and say *continue*, or kill the server and start it again: the work continues \
where it stopped.
"""
_NO_TOOLS: Final = """\
This chat does not offer me the tools for that: {tools}. They come with workspaces, which this \
server may have disabled: see `workspaces.enabled` in its settings.
"""
_GIVEN_UP: Final = """

I stop here. Ask me again once that is repaired. Meanwhile, `tell me a long story` and \
`think about it` need no workspace.
"""
_LIST: Final = "pwd && ls -1 | head -n 20; python3 --version"
_MAX_TRIES: Final = 2
_MAX_SHOWN_CHARS: Final = 2000

Object = Mapping[str, object]


class ThinkText(Struct, frozen=True):
    text: str


class CallTool(Struct, frozen=True):
    name: str
    args: Object = {}


class RefuseAnswer(Struct, frozen=True):
    """Ends the answer as filtered content."""

    explanation: str


class SetPace(Struct, frozen=True):
    """Scales the configured speed of the scene; 0 plays it without pauses. With `by_line` a token
    is a line."""

    factor: float
    by_line: bool = False


# A string is text of the answer. A fault fails the stream; as first item, the stream never opens.
DemoScene = tuple[
    str | ThinkText | CallTool | SourceFound | RefuseAnswer | SetPace | ProviderFault, ...
]


class CompletedCall(Struct, frozen=True, kw_only=True):
    """A tool call of this turn with its result."""

    name: str
    args: Object
    text: str
    is_error: bool

    @property
    def result(self) -> Object:
        """The fields of the result; plain text becomes the field `output`."""
        return parse_object(self.text) or {"output": self.text}

    @property
    def output(self) -> str:
        """What a user wants to read of the result."""
        shown = self.result.get("output") or self.result.get("error")
        return (shown if isinstance(shown, str) else self.text).strip()

    @property
    def failed(self) -> bool:
        """Tools report an error by the flag or by a field `error`."""
        return self.is_error or bool(self.result.get("error"))


class DemoTurn(Struct, frozen=True, kw_only=True):
    prompt: str
    number: int
    files: tuple[str, ...]
    calls: tuple[CompletedCall, ...]
    tools: Mapping[str, ToolSpec]

    def find_calls(self, wanted: CallTool) -> list[CompletedCall]:
        """Calls of a tool with at least these arguments, oldest first."""
        items = wanted.args.items()
        return [
            call
            for call in self.calls
            if call.name == wanted.name and all(call.args.get(key) == arg for key, arg in items)
        ]


class _Template(Struct, frozen=True):
    id: str
    name: str = ""


class _Templates(Struct, frozen=True):
    templates: tuple[_Template, ...] = ()
    recommended_template_id: str | None = None


def show_result(call: CompletedCall, outcome: str = "", ending: str = "") -> DemoScene:
    outcome = outcome or ("That failed." if call.failed else "Done.")
    shown = call.output[:_MAX_SHOWN_CHARS].replace("```", "'''")
    more = "\n\nThe rest is cut." if len(call.output) > _MAX_SHOWN_CHARS else ""
    return (f"{outcome} The tool `{call.name}` answered:\n\n```\n{shown}\n```{more}{ending}",)


def _give_up(outcome: str, call: CompletedCall) -> DemoScene:
    return show_result(call, outcome, _GIVEN_UP)


def list_templates(turn: DemoTurn) -> DemoScene:
    if turn.calls:
        return show_result(turn.calls[-1])
    if "list_templates" not in turn.tools:
        return (_NO_TOOLS.format(tools="`list_templates`"),)
    return ("I'll list the templates.", CallTool("list_templates"))


def run_command(turn: DemoTurn, command: str, text: str) -> DemoScene:
    if "execute" not in turn.tools:
        return (_NO_TOOLS.format(tools="`execute`"),)
    return _execute(turn, command, text) or show_result(turn.calls[-1])


def _execute(turn: DemoTurn, command: str, text: str) -> DemoScene | None:
    """The next scene towards a result of the command; None once its last call has succeeded.

    The error of a tool names the tool that helps.
    """
    run = CallTool("execute", {"command": command})
    if not (tries := turn.find_calls(run)):
        return (text, run)
    if not tries[-1].failed:
        return None
    last, next_call = turn.calls[-1], run
    helped = last.name in ("create_workspace", "start_workspace") and not last.failed
    text = "Let me try again."
    if not helped and "start_workspace" in tries[-1].text:
        text, next_call = "The workspace is stopped. I'll start it.", CallTool("start_workspace")
    elif not helped and "create_workspace" in tries[-1].text:
        text, next_call = _create_workspace(turn)
    made = turn.find_calls(CallTool(next_call.name, next_call.args))
    builds_in_vain = last.name == next_call.name and last.failed and not last.is_error
    if next_call.name not in turn.tools or builds_in_vain or len(made) >= _MAX_TRIES + helped:
        return _give_up("I have no workspace that I can run commands in.", last)
    return (text, next_call)


def _create_workspace(turn: DemoTurn) -> tuple[str, CallTool]:
    """Prefers the template `demo`, then the recommended one."""
    listed = [call for call in turn.find_calls(CallTool("list_templates")) if not call.failed]
    try:
        found = msgspec.json.decode(listed[-1].text if listed else "{}", type=_Templates)
    except DECODE_ERRORS:
        found = _Templates()

    def rank(template: _Template) -> int:
        return 2 * (template.name == "demo") + (template.id == found.recommended_template_id)

    template = max(found.templates, key=rank, default=None)
    if template is None:
        text = "The chat has no workspace yet. I'll list the templates."
        return text, CallTool("list_templates")
    text = f"I'll create a workspace from the template `{template.name}`. This can take a moment."
    return text, CallTool("create_workspace", {"template_id": template.id, "name": "demo"})


def fix_test(turn: DemoTurn) -> DemoScene:
    needed = ("execute", "read_file", "write_file", "edit_files")
    if missing := [f"`{name}`" for name in needed if name not in turn.tools]:
        return (_NO_TOOLS.format(tools=", ".join(missing)),)
    if scene := _execute(turn, _LIST, "I'll list the files of the workspace first."):
        return scene
    listing = turn.find_calls(CallTool("execute", {"command": _LIST}))[-1]
    home, *names = listing.output.splitlines() or [""]
    if not home.startswith("/"):
        return _give_up("I cannot read the listing of this workspace.", listing)
    if "basket.py" in names:
        return _fix_project(turn, home, is_own=False)
    return _fix_project(turn, f"{home.rstrip('/')}/chatd-demo", is_own=True)


def _fix_project(turn: DemoTurn, directory: str, *, is_own: bool) -> DemoScene:
    """`is_own`: the demo model writes the project itself; otherwise the template has it."""

    def run(command: str) -> CallTool:
        return CallTool("execute", {"command": f"cd {shlex.quote(directory)} && {command}"})

    path, test_path = f"{directory}/basket.py", f"{directory}/test_basket.py"
    test, diff = run(f"python3 {'test_basket.py' if is_own else '-m pytest -q'}"), run("git diff")
    edits = [{"path": path, "edits": [{"old_text": _WRONG, "new_text": _RIGHT}]}]
    edit, fix = CallTool("edit_files", {"files": edits}), "One line must change."
    if any(call.failed for call in turn.find_calls(edit)):
        edit = CallTool("write_file", {"path": path, "content": FIXED})
        fix = "The edit failed. I'll write the whole file."
    write: DemoScene = (
        "I bring my own bug: a small project in `chatd-demo` with one failing test.",
        CallTool("write_file", {"path": path, "content": CODE}),
        CallTool("write_file", {"path": test_path, "content": _TEST}),
    )
    read: DemoScene = (
        ThinkText("A basket of 200 with 10 per cent off costs 190. The discount must be wrong.\n"),
        "One test fails: 190 is not 180. I'll read the code and the test.",
        CallTool("read_file", {"path": path}),
        CallTool("read_file", {"path": test_path}),
    )
    think = ThinkText("Ten per cent of 200 is 20, not 10. The last line subtracts 10.\n")
    # Each scene is played until its calls have succeeded so many times in this turn.
    steps: list[tuple[int, DemoScene]] = [
        *([(1, write)] if is_own else []),
        (1, ("Now the tests.", test)),
        (1, read),
        (1, (think, f"The discount is subtracted as an amount. It is a percentage. {fix}", edit)),
        (2, ("The line is changed. I'll run the tests again.", test)),
        *([] if is_own else [(1, ("All tests pass. These lines have changed:", diff))]),
    ]
    tested = [call.output for call in turn.find_calls(test) if not call.failed]
    if any(("190" in output) != (number == 0) for number, output in enumerate(tested)):
        return _give_up("The tests did not end as my script expects.", turn.find_calls(test)[-1])
    for runs, scene in steps:
        calls = [item for item in scene if isinstance(item, CallTool)]
        made = [call for wanted in calls for call in turn.find_calls(wanted)]
        if sum(not call.failed for call in made) >= len(calls) * runs:
            continue
        if len(made) >= len(calls) * runs * _MAX_TRIES:
            return _give_up("That did not work.", made[-1])
        return scene
    shown = turn.calls[-1].output if turn.calls[-1].output.startswith("diff ") else None
    changed = shown or f"-{_WRONG}\n+{_RIGHT}"
    return (_REPORT.format(diff=changed[:_MAX_SHOWN_CHARS], path=path),)

"""The demo model as a coding agent: it finds or writes a small project with a bug and fixes it.

Files, commands and results are real. The results so far decide the next step. A step that failed
is tried once more; then the model reports what the tool answered.
"""

import re
import shlex
from typing import Final

import msgspec
from msgspec import Struct

from chatd.providers.demo.turn import (
    CallTool,
    CompletedCall,
    DemoScene,
    DemoTurn,
    ThinkText,
)
from chatd.providers.sse import DECODE_ERRORS

CODE: Final = '''\
"""The price of a shopping basket."""


def total(prices, discount_percent=0):
    """The sum of the prices, less a discount in per cent."""
    amount = sum(prices)
    return amount - discount_percent
'''
_WRONG: Final = "    return amount - discount_percent"
_RIGHT: Final = "    return amount * (100 - discount_percent) / 100"
FIXED: Final = CODE.replace(_WRONG, _RIGHT)
_TEST: Final = """\
import unittest

from basket import total


class TotalTest(unittest.TestCase):
    def test_prices_are_added_up(self):
        self.assertEqual(total([10, 20, 30]), 60)

    def test_a_discount_is_in_per_cent(self):
        self.assertEqual(total([100, 100], discount_percent=10), 180)

    def test_an_empty_basket_costs_nothing(self):
        self.assertEqual(total([]), 0)
"""
_LIST: Final = "pwd && ls -1 | head -n 20; python3 --version"
NEEDED_TOOLS: Final = ("execute", "read_file", "write_file", "edit_files")
_MAX_TRIES: Final = 2
_MAX_QUOTED_CHARS: Final = 600
_MAX_DIFF_CHARS: Final = 2000
_NO_WORKSPACE: Final = "I have no workspace that I can run commands in."
_REPORT: Final = """\
All three tests pass now.

```diff
{diff}
```

**What was wrong:** the discount was subtracted as an amount of money. It is a percentage.

**Where:** `{path}`

chatd committed each of my steps before the next one began. Try this again, and in the middle stop \
following, or interrupt me and say *continue*, or kill the server and start it again: the work \
continues where it stopped.
"""


class _Step(Struct, frozen=True):
    """Items to play until each of their calls has succeeded `runs` times in this turn."""

    items: DemoScene
    runs: int = 1


class _Template(Struct, frozen=True):
    id: str
    name: str = ""


class _Templates(Struct, frozen=True):
    templates: tuple[_Template, ...] = ()
    recommended_template_id: str | None = None


def coding_scene(turn: DemoTurn) -> DemoScene:
    text = "I'll list the files of the workspace first."
    if (scene := ensure_workspace(turn, _LIST, text)) is not None:
        return scene
    listing = turn.find_calls("execute", command=_LIST)[-1]
    lines = str(listing.result.get("output", "")).strip().splitlines()
    if not lines or not lines[0].startswith("/"):
        return _give_up("I cannot read the listing of this workspace.", listing)
    directory = lines[0].strip().rstrip("/")
    if {"basket.py", "test_basket.py"} <= set(lines[1:]):
        return _fix_project(turn, directory, is_own=False)
    return _fix_project(turn, f"{directory}/chatd-demo", is_own=True)


def ensure_workspace(turn: DemoTurn, command: str, text: str) -> DemoScene | None:
    """The next scene towards a result of `command`; None once its last call has succeeded.

    A tool's error names the tool that helps. Each tool is tried twice, because a user may have
    interrupted the first call.
    """
    run = CallTool("execute", {"command": command})
    tries = turn.find_calls("execute", command=command)
    if not tries:
        return (text, run)
    if not tries[-1].failed:
        return None
    last = turn.calls[-1]
    if last.name == "list_templates":
        return _create_workspace(turn) or _give_up(_NO_WORKSPACE, last)
    if last.name in ("create_workspace", "start_workspace"):
        if last.failed and (not last.is_error or not _can_try(turn, last.name)):
            return _give_up(_NO_WORKSPACE, last)
        return ("Let me try again.", run)
    if "start_workspace" in last.text and _can_try(turn, "start_workspace"):
        return ("The workspace is stopped. I'll start it.", CallTool("start_workspace"))
    can_create = _can_try(turn, "create_workspace") and "list_templates" in turn.tools
    if "create_workspace" in last.text and can_create and (scene := _create_workspace(turn)):
        return scene
    if len(tries) >= _MAX_TRIES:
        return _give_up(_NO_WORKSPACE, last)
    return ("Let me try again.", run)


def _give_up(what: str, last: CompletedCall) -> DemoScene:
    quoted = last.text.strip()[:_MAX_QUOTED_CHARS].replace("```", "'''")
    answer = f"The tool `{last.name}` answered:\n\n```\n{quoted}\n```"
    return (f"{what} {answer}\n\nI stop here. Ask me again once that is repaired.",)


def _can_try(turn: DemoTurn, name: str) -> bool:
    return name in turn.tools and len(turn.find_calls(name)) < _MAX_TRIES


def _create_workspace(turn: DemoTurn) -> DemoScene | None:
    """None if no template can be used. Prefers `demo`, then the recommended template."""
    listed = turn.find_calls("list_templates")
    if not listed or (listed[-1].failed and _can_try(turn, "list_templates")):
        return (
            "The chat has no workspace yet. I'll list the templates.",
            CallTool("list_templates"),
        )
    try:
        found = msgspec.json.decode(listed[-1].text, type=_Templates)
    except DECODE_ERRORS:
        return None

    def rank(template: _Template) -> int:
        return 2 * (template.name == "demo") + (template.id == found.recommended_template_id)

    template = max(found.templates, key=rank, default=None)
    if template is None:
        return None
    return (
        f"I'll create a workspace from the template `{template.name}`. This can take a moment.",
        CallTool("create_workspace", {"template_id": template.id, "name": "demo"}),
    )


def _fix_project(turn: DemoTurn, directory: str, *, is_own: bool) -> DemoScene:
    """`is_own`: the demo model writes the project itself; otherwise the template has it."""
    path = f"{directory}/basket.py"
    change_directory = f"cd {shlex.quote(directory)} && "
    runner = "unittest -v" if is_own else "pytest -q"
    test = CallTool("execute", {"command": f"{change_directory}python3 -m {runner}"})
    for tested in turn.find_calls(test.name, **test.args)[:1]:
        if not tested.failed and re.search("No module named|not found", tested.text):
            return _give_up("This workspace has no Python to run the tests with.", tested)
    for step in _steps(turn, directory, test, is_own=is_own):
        calls = [item for item in step.items if isinstance(item, CallTool)]
        made = [call for item in calls for call in turn.find_calls(item.name, **item.args)]
        if sum(not call.failed for call in made) >= len(calls) * step.runs:
            continue
        if len(made) >= len(calls) * step.runs * _MAX_TRIES:
            return _give_up("That did not work.", made[-1])
        return step.items
    tested = turn.find_calls(test.name, **test.args)
    if tested[-1].result.get("exit_code", 0) != 0 or "FAILED" in tested[-1].text:
        return _give_up("The tests still fail, which my script did not expect.", tested[-1])
    diff = f"-{_WRONG}\n+{_RIGHT}"
    if not is_own:
        command = f"{change_directory}git diff"
        if not (shown := turn.find_calls("execute", command=command)):
            text = "All three tests pass. These lines have changed:"
            return (text, CallTool("execute", {"command": command}))
        output = str(shown[-1].result.get("output", "")).strip()
        diff = output if output.startswith("diff ") else diff
    return (_REPORT.format(diff=diff[:_MAX_DIFF_CHARS], path=path),)


def _steps(turn: DemoTurn, directory: str, test: CallTool, *, is_own: bool) -> list[_Step]:
    path, test_path = f"{directory}/basket.py", f"{directory}/test_basket.py"
    write = (
        "I bring my own bug: a small project in `chatd-demo` with one failing test.",
        CallTool("write_file", {"path": path, "content": CODE}),
        CallTool("write_file", {"path": test_path, "content": _TEST}),
    )
    read = (
        ThinkText("Two tests pass and one fails: 190 is not 180. The discount must be wrong.\n"),
        "One test fails: `190 != 180`. I'll read the code and the test.",
        CallTool("read_file", {"path": path}),
        CallTool("read_file", {"path": test_path}),
    )
    edits = [{"path": path, "edits": [{"old_text": _WRONG, "new_text": _RIGHT}]}]
    fix: DemoScene = (
        ThinkText("Ten per cent of 200 is 20, not 10. The last line subtracts 10.\n"),
        "The discount is subtracted as an amount, but it is a percentage. One line must change.",
        CallTool("edit_files", {"files": edits}),
    )
    if any(call.failed for call in turn.find_calls("edit_files")):
        whole = CallTool("write_file", {"path": path, "content": FIXED})
        fix = ("The edit failed. I'll write the whole file.", whole)
    again = _Step(("The line is changed. I'll run the tests again.", test), runs=2)
    steps = [_Step(write), _Step(("Now the tests.", test)), _Step(read), _Step(fix), again]
    return steps if is_own else steps[1:]

"""The demo model as an agent: finds or makes a small project with a bug, and fixes it.

The files, the commands and their results are real. Which step is next is read from the results
so far; a step that failed is tried once more, then the model says what went wrong.
"""

from typing import Final

import msgspec
from msgspec import Struct

from chatd.providers.demo.beats import Beat, Say, Scene, Think, Use, say
from chatd.providers.demo.project import CODE, FIXED, RIGHT, TEST, WRONG, Place
from chatd.providers.demo.turn import Turn, Used

LOOK: Final = "pwd && ls -1 | head -n 20; python3 --version"
NEEDED: Final = ("execute", "read_file", "write_file", "edit_files")
MAX_CALLS: Final = 30


class _Template(Struct, frozen=True):
    id: str
    name: str = ""


class _Templates(Struct, frozen=True):
    templates: tuple[_Template, ...] = ()
    recommended_template_id: str | None = None


def repair(turn: Turn) -> Scene:
    missing = [name for name in NEEDED if not turn.has(name)]
    if missing:
        return _no_tools(missing)
    if len(turn.used) > MAX_CALLS:
        return _give_up("I have used many tools and am not there yet.", None)
    found = _place(turn)
    return _find_workspace(turn) if found is None else _work(turn, found)


def _place(turn: Turn) -> Place | None:
    """From what the look around has printed: first where commands run, then what is there."""
    for used in turn.done("execute", command=LOOK):
        lines = str(used.result.get("output", "")).strip().splitlines()
        if used.is_error or not lines or not lines[0].startswith("/"):
            continue
        home = lines[0].strip().rstrip("/")
        if {"basket.py", "test_basket.py"} <= set(lines[1:]):
            return Place(path=home, ours=False)
        return Place(path=f"{home}/chatd-demo", ours=True)
    return None


# A place to work


def _find_workspace(turn: Turn) -> Scene:
    looks = turn.done("execute", command=LOOK)
    if not looks:
        return _scene(
            Think(text="A test is to be fixed. First I need to see where I am.\n"),
            Say(text="I'll look around in the workspace first."),
            Use(name="execute", args={"command": LOOK}),
        )
    made = turn.done("create_workspace")
    if made and not made[-1].failed and len(looks) < 2:
        return _scene(
            Say(text="The workspace is there. Let me look again."),
            Use(name="execute", args={"command": LOOK}),
        )
    if made or not turn.has("list_templates", "create_workspace"):
        return _give_up("I have no workspace that I can run commands in.", turn.used[-1])
    return _make_workspace(turn)


def _make_workspace(turn: Turn) -> Scene:
    listed = turn.done("list_templates")
    if not listed:
        return _scene(
            Think(text="There is no workspace yet. I can make one from a template.\n"),
            Say(text="There is no workspace yet. I'll see which templates there are."),
            Use(name="list_templates", args={}),
        )
    template = _first_template(listed[-1])
    if template is None:
        return _give_up("There is no template that I could make a workspace from.", listed[-1])
    return _scene(
        Say(text="I'll make a workspace from the one with the demo. This can take a moment."),
        Use(name="create_workspace", args={"template_id": template, "name": "demo"}),
    )


def _first_template(listed: Used) -> str | None:
    try:
        found = msgspec.json.decode(listed.text, type=_Templates)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    demo = next((each.id for each in found.templates if each.name == "demo"), None)
    first = found.templates[0].id if found.templates else None
    return demo or found.recommended_template_id or first


# The work itself


def _work(turn: Turn, place: Place) -> Scene:
    if place.ours:
        written = turn.done("write_file", path=place.code, content=CODE)
        written += turn.done("write_file", path=place.test)
        if not _settled(written, 2):
            return _enough(written, 4) or _set_up(place)
    tests = turn.done("execute", command=place.command)
    if not _settled(tests, 1):
        return _enough(tests, 2) or _test(place.command, "Now the tests.")
    if "No module named" in tests[0].text or "not found" in tests[0].text:
        return _give_up("There is nothing in this workspace to run the tests with.", tests[0])
    read = turn.done("read_file", path=place.code) + turn.done("read_file", path=place.test)
    if not _settled(read, 2):
        return _enough(read, 4) or _read(place)
    if (edit := _edit(turn, place.code)) is not None:
        return edit
    if not _settled(tests, 2):
        return _enough(tests, 4) or _test(place.command, "Fixed, I think. The tests will tell.")
    return _show(turn, place, tests[-1])


def _settled(calls: list[Used], wanted: int) -> bool:
    return sum(not call.failed for call in calls) >= wanted


def _enough(calls: list[Used], most: int) -> Scene | None:
    """None as long as another try makes sense."""
    return _give_up("That did not work.", calls[-1]) if len(calls) >= most else None


def _test(command: str, words: str) -> Scene:
    return _scene(Say(text=words), Use(name="execute", args={"command": command}))


def _set_up(place: Place) -> Scene:
    return _scene(
        Say(
            text="I'm the demo model, so I bring my own bug: a small project in `chatd-demo`, with"
            " one test that fails. The files are real, you can open them."
        ),
        Use(name="write_file", args={"path": place.code, "content": CODE}),
        Use(name="write_file", args={"path": place.test, "content": TEST}),
    )


def _read(place: Place) -> Scene:
    return _scene(
        Think(
            text="Two tests pass and one fails: 190 is not 180. The sum is right, so the mistake"
            " must be in the discount. I should read both files before I touch anything.\n"
        ),
        Say(text="One test fails: `190 != 180`. I'll read the code and the test."),
        Use(name="read_file", args={"path": place.code}),
        Use(name="read_file", args={"path": place.test}),
    )


def _edit(turn: Turn, code: str) -> Scene | None:
    """None once the line is mended. If editing fails, the file is written whole."""
    edits = turn.done("edit_files")
    whole = turn.done("write_file", path=code, content=FIXED)
    if _settled([*edits, *whole], 1):
        return None
    if not edits:
        return _mend(turn, code)
    return _enough(whole, 2) or _scene(
        Say(text="The edit was not taken. I'll write the file as a whole."),
        Use(name="write_file", args={"path": code, "content": FIXED}),
    )


def _mend(turn: Turn, code: str) -> Scene:
    # The tool's own schema says what it calls the two texts.
    new_names = b"old_text" in bytes(turn.tools["edit_files"].input_schema)
    old, new = ("old_text", "new_text") if new_names else ("search", "replace")
    return _scene(
        Think(
            text="`discount_percent` is taken off as if it were money. Ten per cent of 200 is 20,"
            " not 10. The last line should multiply by what is left of a hundred.\n"
        ),
        Say(
            text="Found it. The discount is subtracted as an amount, but it is a percentage. One"
            " line needs to change."
        ),
        Use(
            name="edit_files",
            args={"files": [{"path": code, "edits": [{old: WRONG, new: RIGHT}]}]},
        ),
    )


def _show(turn: Turn, place: Place, test: Used) -> Scene:
    if test.result.get("exit_code", 0) != 0 or "FAILED" in test.text:
        return _give_up("The tests still fail, which my script did not foresee.", test)
    if place.ours:
        return _report(place, f"-{WRONG}\n+{RIGHT}")
    shown = turn.done("execute", command=place.diff)
    if not shown:
        words = "All three tests pass. This is what has changed:"
        return _scene(Say(text=words), Use(name="execute", args={"command": place.diff}))
    diff = str(shown[-1].result.get("output", "")).strip()
    return _report(place, diff if diff.startswith("diff ") else f"-{WRONG}\n+{RIGHT}")


def _report(place: Place, diff: str) -> Scene:
    return say(
        f"""\
All three tests pass now.

```diff
{diff[:2000]}
```

**What was wrong:** the discount was taken off as if it were money. It is a percentage.

**Where:** `{place.code}`

Each of my steps was committed before the next one began. So try this again, and in the middle of \
it close the page, or press Stop and say *continue*, or kill the server and start it again: the \
work goes on where it was.
"""
    )


# When it does not work out


def _no_tools(missing: list[str]) -> Scene:
    names = ", ".join(f"`{name}`" for name in missing)
    return say(
        f"I would look around in a workspace, write a small project with a bug, run its tests and"
        f" fix it. But this chat does not offer me what I need for that: {names}.\n\nGive the chat"
        " a workspace and ask me again."
    )


def _give_up(what: str, last: Used | None) -> Scene:
    told = (
        "" if last is None else f"\n\nThe last tool, `{last.name}`, said:\n\n{_fenced(last.text)}"
    )
    return say(f"{what}{told}\n\nI stop here. Ask me again once that is mended.")


def _fenced(text: str) -> str:
    cut = text.strip()[:600].replace("```", "'''")
    return f"```\n{cut}\n```"


def _scene(*beats: Beat) -> Scene:
    return Scene(beats=beats)

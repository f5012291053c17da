"""The demo model as an agent: finds or makes a small project with a bug, and fixes it.

The files, the commands and their results are real. Which step is next is read from the results
so far; a step that failed is tried once more, then the model says what went wrong.
"""

from typing import Final

from chatd.providers.demo.beats import Beat, Say, Scene, Think, Use, say
from chatd.providers.demo.project import CODE, FIXED, RIGHT, TEST, WRONG, Place
from chatd.providers.demo.room import give_up, run
from chatd.providers.demo.turn import Turn, Used

LOOK: Final = "pwd && ls -1 | head -n 20; python3 --version"
NEEDED: Final = ("execute", "read_file", "write_file", "edit_files")
MAX_CALLS: Final = 30


def repair(turn: Turn) -> Scene:
    missing = [name for name in NEEDED if not turn.has(name)]
    if missing:
        return _no_tools(missing)
    if len(turn.used) > MAX_CALLS:
        return give_up("I have used many tools and am not there yet.", None)
    words = "A test is to be fixed. I'll look around in the workspace first."
    if (scene := run(turn, LOOK, words)) is not None:
        return scene
    found = _place(turn)
    if found is None:
        return give_up("I do not understand what I see in this workspace.", turn.used[-1])
    return _work(turn, found)


def _place(turn: Turn) -> Place | None:
    """From what the look around has printed: first where commands run, then what is there."""
    for used in turn.done("execute", command=LOOK):
        lines = str(used.result.get("output", "")).strip().splitlines()
        if used.failed or not lines or not lines[0].startswith("/"):
            continue
        home = lines[0].strip().rstrip("/")
        if {"basket.py", "test_basket.py"} <= set(lines[1:]):
            return Place(path=home, ours=False)
        return Place(path=f"{home}/chatd-demo", ours=True)
    return None


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
        return give_up("There is nothing in this workspace to run the tests with.", tests[0])
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
    return give_up("That did not work.", calls[-1]) if len(calls) >= most else None


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
        return give_up("The tests still fail, which my script did not foresee.", test)
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
it stop following, or interrupt me and say *continue*, or kill the server and start it again: the \
work goes on where it was.
"""
    )


# When it does not work out


def _no_tools(missing: list[str]) -> Scene:
    names = ", ".join(f"`{name}`" for name in missing)
    return say(
        f"I would look around in a workspace, write a small project with a bug, run its tests and"
        f" fix it. But this chat does not offer me what I need for that: {names}.\n\nThat comes"
        " with workspaces, which this server may have switched off: see `workspaces.enabled` in its"
        " settings."
    )


def _scene(*beats: Beat) -> Scene:
    return Scene(beats=beats)

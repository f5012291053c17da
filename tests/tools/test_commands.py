"""What is run when a model asks for a command, and what it is told."""

import pytest

from chatd.domain.hands import Output, Truncated
from chatd.tools.commands import MAX_OUTPUT, PREFER_READ, advice, capped, finished, wanted


@pytest.mark.covers("execute-1")
@pytest.mark.parametrize(
    ("command", "background", "runs", "behind"),
    [
        ("make", False, "make", False),
        ("serve &", False, "serve", True),
        ("serve&  ", False, "serve", True),
        ("a && b &", False, "a && b", True),
        ("a &&", False, "a &&", False),
        ("a |&", False, "a |&", False),
        ("serve &", True, "serve &", True),
        ("echo '&'", False, "echo '&'", False),
    ],
)
def test_an_ampersand_at_the_end_means_the_background(
    *, command: str, background: bool, runs: str, behind: bool
) -> None:
    want = wanted(command, background=background)
    assert (want.command, want.background) == (runs, behind)


@pytest.mark.covers("execute-4")
@pytest.mark.parametrize(
    ("command", "advised"),
    [
        ("cat main.py", True),
        ("  cat main.py", True),
        ("category", False),
        ("grep -l x .", True),
        ("rg --include-all x", True),
        ("rg x --include-all", True),
        ("grep -n x main.py", False),
        ("echo cat me", False),
    ],
)
def test_who_dumps_files_is_told_of_a_better_way(*, command: str, advised: bool) -> None:
    assert advice(command) == (PREFER_READ if advised else "")


@pytest.mark.parametrize(("code", "success"), [(0, True), (1, False), (-1, False), (None, False)])
def test_only_an_exit_code_of_zero_is_success(*, code: int | None, success: bool) -> None:
    told = finished(Output(output="x", running=False, exit_code=code), 12)
    assert told.success is success
    assert told.exit_code == (-1 if code is None else code)
    assert told.wall_duration_ms == 12


def test_what_the_agent_left_out_is_told() -> None:
    cut = Truncated(original_bytes=99, retained_bytes=9, omitted_bytes=90)
    told = finished(Output(output="x", running=False, exit_code=0, truncated=cut), None)
    assert told.truncated == cut


@pytest.mark.covers("execute-4")
@pytest.mark.parametrize("text", ["é" * MAX_OUTPUT, "a" + "€" * MAX_OUTPUT, "x" * (MAX_OUTPUT + 1)])
def test_too_much_output_keeps_both_ends_and_whole_characters(text: str) -> None:
    short = capped(text)
    assert len(short.encode()) < MAX_OUTPUT + 100
    assert "bytes left out here" in short
    assert "\ufffd" not in short
    assert short.startswith(text[0])
    assert short.endswith(text[-1])


def test_output_that_fits_is_left_alone() -> None:
    assert capped("x" * MAX_OUTPUT) == "x" * MAX_OUTPUT

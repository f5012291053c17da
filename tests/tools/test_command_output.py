"""What is run when a model asks for a command, and what it is report."""

import msgspec
import pytest

from chatd.domain.answer.tool_output import STEP_OUTPUT_BYTES, AnsweredCall, fit_outputs
from chatd.domain.ids import ToolCallId
from chatd.domain.workspace.agent_api import OutputTruncation, ProcessOutput
from chatd.tools.execute import (
    PREFER_READ_FILE_TEXT,
    UNKNOWN_SIGNAL,
    CommandReport,
    finished_report,
    parse_command,
    read_file_advice,
    report_output,
)


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
def test_a_trailing_ampersand_requests_the_background(
    *, command: str, background: bool, runs: str, behind: bool
) -> None:
    parsed = parse_command(command, background=background)
    assert (parsed.command, parsed.background) == (runs, behind)


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
def test_a_command_that_dumps_a_file_gets_advice_to_use_read_file(
    *, command: str, advised: bool
) -> None:
    assert read_file_advice(command) == (PREFER_READ_FILE_TEXT if advised else "")


@pytest.mark.parametrize(("code", "success"), [(0, True), (1, False), (-1, False), (None, False)])
def test_only_an_exit_code_of_zero_is_success(*, code: int | None, success: bool) -> None:
    report = finished_report(ProcessOutput(output="x", running=False, exit_code=code), 12)
    assert report.success is success
    assert report.wall_duration_ms == 12


@pytest.mark.parametrize(
    ("code", "signal", "told"),
    [
        (0, None, (0, "")),
        (3, None, (3, "")),
        (-1, "SIGKILL", (None, "SIGKILL")),
        (-1, None, (None, UNKNOWN_SIGNAL)),
        (None, None, (None, UNKNOWN_SIGNAL)),
    ],
    ids=["success", "failure", "killed", "killed, of an earlier agent", "not known"],
)
def test_a_command_has_an_exit_code_or_the_signal_that_ended_it(
    code: int | None, signal: str | None, told: tuple[int | None, str]
) -> None:
    output = ProcessOutput(output="x", running=False, exit_code=code, signal=signal)
    report = finished_report(output, 12)
    assert (report.exit_code, report.signal) == told


def test_the_report_contains_the_truncation() -> None:
    cut = OutputTruncation(original_bytes=99, retained_bytes=9, omitted_bytes=90)
    report = finished_report(
        ProcessOutput(output="x", running=False, exit_code=0, truncated=cut), None
    )
    assert report.truncated == cut


def test_a_report_that_a_step_cuts_says_where_the_whole_output_is() -> None:
    output = ProcessOutput(
        output="x" * 40_000, running=False, exit_code=3, file="/home/u/.chatd/results/a.txt"
    )
    answers = [
        AnsweredCall(
            call_id=ToolCallId(f"c{number}"),
            name="execute",
            output=report_output(finished_report(output, 5)),
        )
        for number in range(6)
    ]
    fitted = [one.output.text for one in fit_outputs(answers, None)]
    assert sum(map(len, fitted)) <= STEP_OUTPUT_BYTES
    for text in fitted:
        report = msgspec.json.decode(text, type=CommandReport)
        assert (report.exit_code, report.output_file) == (3, output.file)
        assert f"in {output.file} of the workspace: read parts of it" in report.output

"""What commands print into pipes: nothing that a terminal would obey, except data."""

import pytest

from chatd.cli.output import print_notice, print_text

HOSTILE = "a\x1b]0;title\x07b\x1b[2Jc\u202ed\n\te"
SAFE = "abcd\n\te\n"


def test_a_text_loses_escapes_in_a_pipe_too(capsys: pytest.CaptureFixture[str]) -> None:
    print_text(HOSTILE)
    print_notice(HOSTILE)
    assert capsys.readouterr() == (SAFE, SAFE)


def test_data_goes_into_a_pipe_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    print_text(HOSTILE, is_data=True)
    assert capsys.readouterr().out == f"{HOSTILE}\n"

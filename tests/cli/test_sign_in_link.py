"""A sign-in link that is no argument of a command."""

import io

import pytest

from chatd.cli.account.sign_in import read_given
from chatd.settings.schema import SettingsError


def given_line(monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(line))


def test_a_link_is_read_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    given_line(monkeypatch, "https://chat.example.com/sign-in#the-secret\n")
    given = read_given("-", None, None)
    assert (given.url, given.link_secret) == ("https://chat.example.com", "the-secret")


@pytest.mark.parametrize("line", ["", "https://chat.example.com\n", "https://chat.example.com/#\n"])
def test_anything_else_is_refused_and_not_repeated(
    monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    given_line(monkeypatch, line)
    with pytest.raises(SettingsError, match="that is no sign-in link: it has the form"):
        read_given("-", None, None)

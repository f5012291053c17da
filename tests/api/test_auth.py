"""The file with the administrator's token."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from chatd.api.accounts.authenticator import ADMIN_TOKEN_FILE, admin_token
from chatd.domain.errors import ChatdError


def test_a_configured_token_is_used_and_no_file_is_written(tmp_path: Path) -> None:
    assert admin_token("from-the-environment", tmp_path) == "from-the-environment"
    assert list(tmp_path.iterdir()) == []


def test_a_token_is_created_once_in_a_private_file(tmp_path: Path) -> None:
    token = admin_token(None, tmp_path / "data")
    assert len(token) >= 40
    assert admin_token(None, tmp_path / "data") == token
    (kept,) = (tmp_path / "data").iterdir()
    assert (kept.name, kept.stat().st_mode & 0o777) == (ADMIN_TOKEN_FILE, 0o600)
    assert admin_token(None, tmp_path / "other") != token


def test_processes_that_start_together_agree_on_one_token(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(admin_token, None, tmp_path) for _ in range(16)]
    assert len({token.result() for token in asked}) == 1
    assert [path.name for path in tmp_path.iterdir()] == [ADMIN_TOKEN_FILE]


@pytest.mark.parametrize(
    "content",
    [
        *("", "\n", "x", "fifteen-letters"),
        *("two words of some length", "ümlauts-of-some-length", "x" * 5000, "null\0null-null-null"),
    ],
)
def test_a_token_that_is_short_or_unfit_for_a_header_is_refused(
    tmp_path: Path, content: str
) -> None:
    (tmp_path / ADMIN_TOKEN_FILE).write_text(content)
    with pytest.raises(
        ChatdError, match=rf"{ADMIN_TOKEN_FILE} must have 16 to 4095 .* Remove the file"
    ):
        admin_token(None, tmp_path)
    with pytest.raises(ChatdError, match=r"CHATD_ADMIN_TOKEN must have 16 to 4095 .* Unset it"):
        admin_token(content, tmp_path)


def test_sixteen_characters_are_enough_for_a_token(tmp_path: Path) -> None:
    assert admin_token("sixteen-letters!", tmp_path) == "sixteen-letters!"


def test_an_unwritable_path_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ChatdError, match="admin-token"):
        admin_token(None, tmp_path / "file")

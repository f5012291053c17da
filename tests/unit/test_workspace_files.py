"""Which bytes of a workspace's file are shown as text."""

import pytest

from chatd.domain.workspace.agent_api import is_text

SIGN = "ä€𝄞".encode()


@pytest.mark.parametrize("start", range(4))
def test_a_character_cut_at_the_beginning_of_a_later_piece_is_text(start: int) -> None:
    piece = "𝄞 and more".encode()[start:]
    assert is_text(piece, is_beginning=start == 0, is_end=True)


@pytest.mark.parametrize("end", range(len(SIGN) + 1))
def test_a_character_cut_at_the_end_is_text_only_if_the_file_goes_on(end: int) -> None:
    assert is_text(SIGN[:end], is_beginning=True, is_end=False)
    is_whole = end in (0, 2, 5, 9)
    assert is_text(SIGN[:end], is_beginning=True, is_end=True) is is_whole


@pytest.mark.parametrize("content", [b"a\0b", b"\xff\xfe\x00", b"caf\xe9 au lait", b"\x80abc"])
def test_bytes_that_are_not_utf_8_are_not_text(content: bytes) -> None:
    assert not is_text(content, is_beginning=True, is_end=True)

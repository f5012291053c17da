"""File names in headers, ranges of bytes, and signed links."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from chatd.domain.errors import Forbidden
from chatd.domain.files import (
    ByteRange,
    DownloadLink,
    RangeOutside,
    content_disposition,
    open_link,
    read_file_name,
    select_range,
    sign_link,
)
from chatd.domain.ids import FileId, UserId


@pytest.mark.parametrize(
    ("header", "name"),
    [
        (None, None),
        ("attachment", None),
        ("attachment; filename=a.png", "a.png"),
        ('attachment; filename="a b.png"', "a b.png"),
        ('attachment; filename="a \\"b\\".png"', 'a "b".png'),
        ("attachment; filename*=UTF-8''na%C3%AFve%20%E2%82%AC.txt", "naïve €.txt"),
        ("attachment; filename=\"plain\"; filename*=utf-8'en'better.txt", "better.txt"),
        ("attachment; filename*=utf-8''%ff%zz", "\ufffd%zz"),
        ('form-data; name="f"; filename="../../etc/passwd"', "passwd"),
        ('attachment; filename="C:\\dir\\a.txt"', "a.txt"),
        ('attachment; filename="a\tb\x7f.txt"', "ab.txt"),
        ('attachment; filename=".."', None),
        ('attachment; filename=""', None),
        ('attachment; filename="gr\u00c3\u00b6\u00c3\u009fe.txt"', "größe.txt"),
        ('attachment; filename="caf\xe9.txt"', "café.txt"),
        (f'attachment; filename="{"a" * 300}"', "a" * 255),
    ],
)
def test_the_name_of_an_upload_is_read_from_its_header(
    header: str | None, name: str | None
) -> None:
    assert read_file_name(header) == name


def test_a_long_name_is_cut_between_characters() -> None:
    name = read_file_name(f"attachment; filename*=UTF-8''{'%E2%82%AC' * 100}")
    assert name == "€" * 85


@pytest.mark.parametrize("name", ["a.png", "größe €.txt", 'a "quoted"; name.txt', "100%.csv"])
def test_a_name_that_is_sent_can_be_read_again(name: str) -> None:
    header = content_disposition("inline", name)
    assert header.isascii()
    assert "\n" not in header
    assert read_file_name(header) == name


@pytest.mark.parametrize(
    ("header", "part"),
    [
        (None, None),
        ("bytes=0-3", ByteRange(0, 4)),
        ("bytes=5-", ByteRange(5, 10)),
        ("bytes=-3", ByteRange(7, 10)),
        ("bytes=-30", ByteRange(0, 10)),
        ("bytes=8-100", ByteRange(8, 10)),
        (" bytes = 1 - 2 ", ByteRange(1, 3)),
        ("bytes=0-1,4-5", None),
        ("bytes=3-2", None),
        ("bytes=-", None),
        ("bytes=a-b", None),
        ("items=0-3", None),
        ("bytes=" + "9" * 40 + "-", None),
    ],
)
def test_a_range_selects_a_part_of_a_file(header: str | None, part: ByteRange | None) -> None:
    assert select_range(header, 10) == part


@pytest.mark.parametrize("header", ["bytes=10-", "bytes=10-12", "bytes=-0"])
def test_a_range_outside_the_file_is_an_error(header: str) -> None:
    with pytest.raises(RangeOutside):
        select_range(header, 10)


KEY = bytes(range(32))
NOW = datetime(2026, 3, 27, 9, tzinfo=UTC)
LINK = DownloadLink(
    file_id=FileId(UUID(int=5)), user_id=UserId(UUID(int=6)), expires=int(NOW.timestamp()) + 300
)


def refusal(token: str, *, file: int = 5, key: bytes = KEY, at: datetime = NOW) -> str:
    with pytest.raises(Forbidden) as refused:
        open_link(key, token, FileId(UUID(int=file)), at)
    return refused.value.code


def test_a_signed_link_names_its_user_until_it_expires() -> None:
    token = sign_link(KEY, LINK)
    assert open_link(KEY, token, LINK.file_id, NOW + timedelta(seconds=299)) == LINK
    assert refusal(token, at=NOW + timedelta(seconds=300)) == "link_expired"


def test_a_link_of_another_file_or_key_is_refused() -> None:
    token = sign_link(KEY, LINK)
    assert refusal(token, file=7) == "link_invalid"
    assert refusal(token, key=bytes(32)) == "link_invalid"


def test_a_link_with_any_changed_character_is_refused() -> None:
    token = sign_link(KEY, LINK)
    for index, char in enumerate(token):
        for other in "Aa_=é":
            if other != char:
                assert refusal(token[:index] + other + token[index + 1 :]) == "link_invalid"
    for changed in ("", token[:-1], token + "A", token + "=", "A" * 5000):
        assert refusal(changed) == "link_invalid"

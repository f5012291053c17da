"""Which files are accepted, under which type, and why others are refused."""

import pytest

from chatd.domain.errors import InvalidInput, RequestError, UnsupportedFile
from chatd.domain.media_types import MAX_IMAGE_PIXELS, FileInspection, ImageSize, read_image_size
from tests.support.sample_files import CSV, GIF, JPEG, JSON, PDF, PNG, SAMPLES, WEBP, jpeg, png


def inspect(
    data: bytes, declared: str | None = None, name: str | None = None, piece: int = 1 << 20
) -> str:
    inspection = FileInspection(declared, name)
    for start in range(0, len(data), piece):
        inspection.feed(data[start : start + piece])
    assert inspection.size == len(data)
    return inspection.finish()


@pytest.mark.parametrize("media_type", SAMPLES)
def test_a_declared_type_is_kept_if_the_content_has_it(media_type: str) -> None:
    assert inspect(SAMPLES[media_type], media_type) == media_type
    assert inspect(SAMPLES[media_type], f"{media_type.upper()}; charset=utf-8") == media_type


@pytest.mark.parametrize(
    ("data", "name", "becomes"),
    [
        (PNG, "a.png", "image/png"),
        (PNG, None, "image/png"),
        (PNG, "without extension", "image/png"),
        (JPEG, "a.JPG", "image/jpeg"),
        (PDF, "a.pdf", "application/pdf"),
        (b"x", "a.md", "text/markdown"),
        (CSV, "a.csv", "text/csv"),
        (JSON, "a.json", "application/json"),
        (b"print()", "a.py", "text/plain"),
        (b"x", None, "text/plain"),
        (b"\xef\xbb\xbfwith a mark", "a.txt", "text/plain"),
    ],
)
@pytest.mark.parametrize("declared", [None, "", "application/octet-stream"])
def test_without_a_declared_type_the_content_decides(
    data: bytes, name: str | None, becomes: str, declared: str | None
) -> None:
    assert inspect(data, declared, name) == becomes


@pytest.mark.parametrize(
    ("declared", "becomes"),
    [
        ("image/jpg", "image/jpeg"),
        ("text/x-python", "text/plain"),
        ("text/x-markdown", "text/markdown"),
        ("text/json", "application/json"),
    ],
)
def test_other_names_of_a_type_become_the_usual_one(declared: str, becomes: str) -> None:
    data = JPEG if becomes == "image/jpeg" else JSON
    assert inspect(data, declared) == becomes


@pytest.mark.parametrize(
    ("data", "declared", "name", "field"),
    [
        (JPEG, "image/png", None, "Content-Type"),
        (b"text", "image/png", None, "Content-Type"),
        (PNG, "text/plain", None, "Content-Type"),
        (PDF, "application/json", None, "Content-Type"),
        (b"%PD", "application/pdf", None, "Content-Type"),
        (b"<not json>", "application/json", None, "Content-Type"),
        (JPEG, None, "a.png", "filename"),
        (PNG, "image/png", "a.pdf", "filename"),
        (PNG, None, "notes.txt", "filename"),
        (b"text", "text/plain", "a.png", "filename"),
        (b"MZ text", None, "a.gif", "filename"),
    ],
)
def test_a_lying_type_or_name_is_refused(
    data: bytes, declared: str | None, name: str | None, field: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        inspect(data, declared, name)
    assert (refused.value.code, refused.value.field) == ("file_type_mismatch", field)


SVG = b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"


@pytest.mark.parametrize(
    "data",
    [
        SVG,
        b"\xef\xbb\xbf  \n" + SVG,
        b"<?xml version='1.0'?><!-- a --><!DOCTYPE note [<!ENTITY a 'b'>]>" + SVG,
        b"<!DOCTYPE svg PUBLIC '-//W3C//DTD SVG 1.1//EN' 'x.dtd'>" + SVG,
        b"<s:svg xmlns:s='http://www.w3.org/2000/svg'/>",
        b"<!doctype html><p>x",
        b"<!-- a --> <HTML>",
        b"<script>alert(1)</script>",
        b"<body onload=x>",
    ],
)
@pytest.mark.parametrize("declared", ["text/plain", "text/markdown", "application/octet-stream"])
def test_markup_that_can_run_scripts_is_refused_as_text(data: bytes, declared: str) -> None:
    with pytest.raises(UnsupportedFile):
        inspect(data, declared)


@pytest.mark.parametrize(
    "data", [b"<p>a", b"<!-- a -->\n# Title", b"<?xml version='1.0'?><project/>", b"a <script>"]
)
def test_other_text_with_tags_is_text(data: bytes) -> None:
    assert inspect(data, "text/markdown") == "text/markdown"


@pytest.mark.parametrize(
    ("declared", "name"),
    [
        ("image/svg+xml", None),
        ("text/html", None),
        ("application/zip", None),
        ("multipart/form-data; boundary=x", None),
        ("application/x-www-form-urlencoded", None),
        ("video/mp4", "a.mp4"),
        ("nonsense", None),
        (None, "a.svg"),
        ("text/plain", "a.html"),
    ],
)
def test_unsupported_types_are_refused_before_a_byte_is_read(
    declared: str | None, name: str | None
) -> None:
    with pytest.raises(UnsupportedFile):
        FileInspection(declared, name)


@pytest.mark.parametrize(
    "data",
    [
        b"PK\3\4" + bytes(20),
        b"\x7fELF" + bytes(20),
        b"a\0b",
        b"\xff\xfea\0",  # UTF-16
        b"caf\xe9",  # Latin-1
        b"cut \xe2\x82",
    ],
)
def test_other_binary_content_is_refused(data: bytes) -> None:
    with pytest.raises(UnsupportedFile):
        inspect(data)


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 4096])
@pytest.mark.parametrize("text", ["größer € 😀 " * 50, "plain"])
def test_text_may_be_cut_anywhere(text: str, piece: int) -> None:
    assert inspect(text.encode(), piece=piece) == "text/plain"


def test_markup_that_a_tool_returned_is_plain_text_and_only_if_it_is_declared_so() -> None:
    inspection = FileInspection("text/plain", "result.txt", takes_markup=True)
    inspection.feed(b"<html><script>")
    assert inspection.finish() == "text/plain"
    for declared, name in (("text/html", "result.txt"), ("text/plain", "result.html")):
        with pytest.raises(UnsupportedFile):
            FileInspection(declared, name, takes_markup=True)
    for declared, name in ((None, "result.md"), ("text/csv", None)):
        with pytest.raises(UnsupportedFile):
            FileInspection(declared, name, takes_markup=True).feed(b"<html><script>")


def test_an_invalid_byte_in_a_late_chunk_is_found() -> None:
    inspection = FileInspection("text/plain", None)
    inspection.feed(b"x" * 5000)
    with pytest.raises(UnsupportedFile):
        inspection.feed(b"y" * 5000 + b"\xff")


@pytest.mark.parametrize("data", [PNG, JPEG, GIF, WEBP, PDF])
def test_a_file_that_is_cut_off_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidInput) as refused:
        inspect(data[:-8])
    assert refused.value.code == "broken_file"


@pytest.mark.parametrize("data", [PNG, JPEG, GIF, WEBP, PDF])
def test_a_file_of_its_first_bytes_alone_is_refused(data: bytes) -> None:
    with pytest.raises(RequestError):
        inspect(data[:12])


@pytest.mark.parametrize("piece", [5000, 8192, 9001])
def test_the_end_of_a_file_is_found_where_two_chunks_meet(piece: int) -> None:
    assert inspect(png(padding=9000), piece=piece) == "image/png"
    assert inspect(jpeg(metadata=9000) + b"trailer of a camera", piece=piece) == "image/jpeg"


def test_an_empty_file_is_refused() -> None:
    with pytest.raises(InvalidInput) as refused:
        inspect(b"", "text/plain")
    assert refused.value.code == "empty_file"


@pytest.mark.parametrize("data", [png(60_000, 60_000), jpeg(65_535, 65_535)])
def test_an_image_with_too_many_pixels_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidInput) as refused:
        inspect(data)
    assert refused.value.code == "broken_file"
    assert f"{MAX_IMAGE_PIXELS:,}" in refused.value.detail


def test_an_image_without_pixels_is_refused() -> None:
    with pytest.raises(InvalidInput):
        inspect(png(0, 5))


@pytest.mark.parametrize("media_type", ["image/png", "image/jpeg", "image/gif", "image/webp"])
def test_the_size_of_an_image_is_read_from_its_head(media_type: str) -> None:
    data = SAMPLES[media_type]
    assert read_image_size(media_type, data) == ImageSize(2, 3)
    for end in range(20):
        assert read_image_size(media_type, data[:end]) in (None, ImageSize(2, 3))

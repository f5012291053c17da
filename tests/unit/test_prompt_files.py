"""How attachments are converted for a prompt."""

import pytest

from chatd.domain.chat.parts import FilePart
from chatd.domain.model.protocol import PromptFile, PromptText
from chatd.domain.prompt.prompt_files import MAX_PASTE_BYTES, ResolvedFile, convert_file, is_paste

PASTE = "pasted-text-2026-03-27-09-00-00.txt"


def converted(
    file: ResolvedFile | None, media_type: str = "image/png", name: str | None = None
) -> PromptFile | PromptText | None:
    files = {} if file is None else {"f": file}
    return convert_file(FilePart(media_type=media_type, file_id="f", name=name), files, None)


def text_of(part: PromptFile | PromptText | None) -> str:
    assert isinstance(part, PromptText)
    return part.text


@pytest.mark.covers("prompt-2")
def test_a_file_is_sent_as_it_is_stored() -> None:
    stored = ResolvedFile(media_type="image/webp", data=b"x", name="photo.webp")
    assert converted(stored, name="other.png") == PromptFile(
        media_type="image/webp", data=b"x", name="photo.webp"
    )


@pytest.mark.covers("prompt-2")
def test_data_in_the_message_itself_is_decoded() -> None:
    part = FilePart(media_type="text/csv", data="YSxi", name="t.csv")
    assert convert_file(part, {}, None) == PromptFile(
        media_type="text/csv", data=b"a,b", name="t.csv"
    )


@pytest.mark.covers("prompt-2")
def test_a_file_id_takes_precedence_over_inline_data() -> None:
    part = FilePart(media_type="image/png", file_id="f", data="YSxi")
    assert "expired" in text_of(convert_file(part, {}, None))


@pytest.mark.covers("prompt-12")
@pytest.mark.parametrize(
    ("media_type", "name", "expected"),
    [
        (
            "image/png",
            None,
            "[The attachment of type image/png has expired and is no longer available.]",
        ),
        (
            "application/octet-stream",
            "a.bin",
            "[The attachment a.bin has expired and is no longer available.]",
        ),
        ("", None, "[The attachment has expired and is no longer available.]"),
    ],
)
def test_an_expired_file_is_replaced_by_a_note(
    media_type: str, name: str | None, expected: str
) -> None:
    assert text_of(converted(None, media_type, name)) == expected


def test_data_that_cannot_be_decoded_counts_as_expired() -> None:
    assert "expired" in text_of(convert_file(FilePart(media_type="image/png", data="!"), {}, None))


@pytest.mark.covers("prompt-12")
def test_an_empty_file_is_not_sent() -> None:
    assert converted(ResolvedFile(media_type="image/png", data=b"")) is None
    assert convert_file(FilePart(media_type="image/png"), {}, None) is None


# Pastes


@pytest.mark.covers("prompt-8")
@pytest.mark.parametrize(
    ("name", "media_type", "expected"),
    [
        (PASTE, "text/plain", True),
        (PASTE, "text/plain; charset=utf-8", True),
        (PASTE, "text/html", True),
        (PASTE, "application/json", True),
        (PASTE, "application/xml", True),
        (PASTE, "application/javascript", True),
        (PASTE, "application/yaml", True),
        (PASTE, "application/pdf", False),
        (PASTE, "image/png", False),
        (PASTE, "application/octet-stream", False),
        ("notes.txt", "text/plain", False),
        (f"my-{PASTE}", "text/plain", False),
        ("pasted-text-2026-3-27-09-00-00.txt", "text/plain", False),
        (f"{PASTE}.exe", "text/plain", False),
        (None, "text/plain", False),
    ],
)
def test_a_paste_is_recognized_by_name_and_type(
    name: str | None, media_type: str, expected: object
) -> None:
    assert is_paste(name, media_type) is expected


@pytest.mark.covers("prompt-8")
def test_a_paste_is_sent_as_text() -> None:
    pasted = ResolvedFile(media_type="text/plain", data="süß\0".encode(), name=PASTE)
    assert text_of(converted(pasted)) == "[The user pasted this text]\nsüß\ufffd"


@pytest.mark.covers("prompt-8")
def test_a_paste_is_cut_at_its_limit_between_characters() -> None:
    pasted = ResolvedFile(media_type="text/plain", data=("x" + "ä" * 70_000).encode(), name=PASTE)
    shown = text_of(converted(pasted))
    assert shown.count("ä") == MAX_PASTE_BYTES // 2 - 1
    assert shown.endswith("[Cut here: the paste has 140001 bytes; 131072 are shown.]")
    assert "\ufffd" not in shown


@pytest.mark.covers("prompt-8")
def test_a_paste_at_its_limit_is_sent_whole() -> None:
    pasted = ResolvedFile(media_type="text/plain", data=b"x" * MAX_PASTE_BYTES, name=PASTE)
    assert "Cut here" not in text_of(converted(pasted))


# Files that the provider does not accept


@pytest.mark.covers("prompt-16")
@pytest.mark.parametrize("kind", ["text/plain", "text/markdown", "text/csv", "application/json"])
def test_a_text_file_that_is_not_accepted_is_sent_as_text_in_full(kind: str) -> None:
    stored = ResolvedFile(media_type=f"{kind}; charset=utf-8", data=b"x" * 300_000, name="n.txt")
    part = FilePart(media_type=kind, file_id="f")
    shown = text_of(convert_file(part, {"f": stored}, lambda kind: False))
    assert shown == "[Attached file: n.txt]\n" + "x" * 300_000


@pytest.mark.covers("prompt-16")
@pytest.mark.parametrize("kind", ["text/plain", "application/json"])
def test_a_text_file_that_is_accepted_stays_a_file(kind: str) -> None:
    stored = ResolvedFile(media_type=kind, data=b"x")
    part = FilePart(media_type=kind, file_id="f")
    assert isinstance(convert_file(part, {"f": stored}, lambda known: known == kind), PromptFile)


@pytest.mark.covers("prompt-16")
@pytest.mark.parametrize("kind", ["image/png", "application/pdf", "text/html", "audio/wav"])
def test_other_files_are_never_converted_to_text(kind: str) -> None:
    stored = ResolvedFile(media_type=kind, data=b"\x00\xff")
    part = FilePart(media_type=kind, file_id="f")
    assert isinstance(convert_file(part, {"f": stored}, lambda known: False), PromptFile)


@pytest.mark.covers("prompt-16")
def test_without_known_media_types_files_stay_files() -> None:
    assert isinstance(converted(ResolvedFile(media_type="text/plain", data=b"x")), PromptFile)


def test_the_text_of_a_file_without_a_name_is_labelled() -> None:
    stored = ResolvedFile(media_type="text/plain", data=b"\xff")
    part = FilePart(media_type="text/plain", file_id="f")
    assert (
        text_of(convert_file(part, {"f": stored}, lambda kind: False)) == "[Attached file]\n\ufffd"
    )

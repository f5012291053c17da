"""The form of files for each API, and fitting of efforts."""

import base64

import pytest

from chatd.domain.model.config import EFFORT_LEVELS
from chatd.domain.model.protocol import BYTES_PER_MIB, AcceptedFiles, Effort, PromptFile
from chatd.providers.file_inputs import (
    ANTHROPIC_FILES,
    BASE64_SLICE_BYTES,
    CHAT_COMPLETIONS_FILES,
    GEMINI_FILES,
    RESPONSES_FILES,
    DocumentInput,
    FileInput,
    ImageInput,
    MediaInput,
    NoteInput,
    TextFileInput,
    base64_json,
    file_text,
    fit_file,
    is_text,
    media_type_of,
)
from chatd.providers.options import lower_effort, raise_effort, thinking_budget_tokens
from tests.support.sample_files import png

PNG = b"\x89PNG\r\n\x1a\nrest"
WEBP = b"RIFF1234WEBPrest"


def file(media_type: str, data: bytes = b"data", name: str | None = None) -> PromptFile:
    return PromptFile(media_type=media_type, data=data, name=name)


@pytest.mark.parametrize(
    ("media_type", "data", "found"),
    [
        ("image/png", PNG, "image/png"),
        ("image/PNG; x=1", b"odd", "image/png"),
        ("image/jpg", b"odd", "image/jpeg"),
        ("image/png", b"\xff\xd8\xffrest", "image/jpeg"),
        ("image/png", b"GIF87a", "image/gif"),
        ("image/png", b"GIF89a", "image/gif"),
        ("application/octet-stream", WEBP, "image/webp"),
        ("", b"%PDF-1.4", "application/pdf"),
        ("", b"what", "application/octet-stream"),
        ("text/plain", PNG, "text/plain"),
    ],
)
def test_the_type_of_an_image_is_read_from_its_bytes(
    media_type: str, data: bytes, found: str
) -> None:
    assert media_type_of(file(media_type, data)) == found


@pytest.mark.covers("providers-20")
@pytest.mark.parametrize(
    "accepts", [ANTHROPIC_FILES, RESPONSES_FILES, CHAT_COMPLETIONS_FILES, GEMINI_FILES]
)
@pytest.mark.parametrize(
    ("given", "becomes"),
    [
        (file("image/png", PNG), ImageInput),
        (file("application/pdf", b"%PDF-1"), DocumentInput),
        (file("text/markdown"), TextFileInput),
        (file("application/json"), TextFileInput),
        (file("application/vnd.api+json"), TextFileInput),
        (file("image/svg+xml", b"<svg/>"), TextFileInput),
        (file("application/zip"), NoteInput),
        (file("image/tiff"), NoteInput),
        (file("image/png", b""), NoteInput),
        (file("text/plain", b""), NoteInput),
    ],
)
def test_a_file_is_sent_or_described(
    given: PromptFile, becomes: type[FileInput], accepts: AcceptedFiles
) -> None:
    assert isinstance(fit_file(given, accepts), becomes)


def test_audio_is_sent_only_to_apis_that_take_it() -> None:
    sound = file("audio/mpeg", b"tune")
    assert fit_file(sound, GEMINI_FILES) == MediaInput(media_type="audio/mpeg", data=b"tune")
    assert isinstance(fit_file(sound, ANTHROPIC_FILES), NoteInput)


@pytest.mark.covers("providers-20")
def test_a_file_that_is_too_large_is_described() -> None:
    image = file("image/png", PNG + b"x" * (5 * BYTES_PER_MIB - len(PNG)), "big.png")
    assert fit_file(image, ANTHROPIC_FILES) == NoteInput(
        text="[The file big.png (image/png) is not shown: larger than 5 MiB.]"
    )
    assert isinstance(fit_file(file("image/png", image.data[:-1]), ANTHROPIC_FILES), ImageInput)
    pages = file("application/pdf", b"x" * 32 * BYTES_PER_MIB)
    assert fit_file(pages, ANTHROPIC_FILES) == NoteInput(
        text="[A file (application/pdf) is not shown: larger than 32 MiB.]"
    )


def test_invalid_bytes_of_a_text_file_are_replaced() -> None:
    made = fit_file(file("text/plain", b"a\xffb", "a.txt"), ANTHROPIC_FILES)
    assert made == TextFileInput(text="a\ufffdb", name="a.txt")
    assert file_text(TextFileInput(text="b", name="a.txt")) == "[File: a.txt]\nb"
    assert file_text(TextFileInput(text="b", name=None)) == "b"


@pytest.mark.parametrize("kind", ["text/x-python", "application/yaml", "application/atom+xml"])
def test_source_code_is_text(kind: str) -> None:
    assert is_text(kind)
    assert not is_text("application/pdf")


# Effort


@pytest.mark.parametrize(
    ("sent", "allowed", "up", "down"),
    [
        ("low", ("low", "high"), "low", "low"),
        ("medium", ("low", "high"), "high", "low"),
        ("none", ("low", "high"), "low", "low"),
        ("max", ("low", "high"), "high", "high"),
        ("minimal", ("max", "low"), "low", "low"),
    ],
)
def test_an_effort_is_fitted_to_the_allowed_efforts(
    sent: Effort, allowed: tuple[Effort, ...], up: Effort, down: Effort
) -> None:
    assert raise_effort(sent, allowed) == up
    assert lower_effort(sent, allowed) == down


def test_a_higher_effort_never_has_a_smaller_budget() -> None:
    for most in (100, 1024, 1025, 2000, 32_000):
        budgets = [thinking_budget_tokens(step, most) or 0 for step in EFFORT_LEVELS]
        assert budgets == sorted(budgets)
        assert all(budget == 0 or 1024 <= budget < most for budget in budgets)
    assert thinking_budget_tokens("none", 32_000) is None
    assert thinking_budget_tokens("high", 1024) is None
    assert thinking_budget_tokens("low", 1025) == 1024


@pytest.mark.parametrize("size", [0, 1, 2, 3, BASE64_SLICE_BYTES - 1, 2 * BASE64_SLICE_BYTES + 1])
def test_a_file_in_slices_has_the_same_base64(size: int) -> None:
    data = bytes(index % 251 for index in range(size))
    made = bytes(base64_json(data, "data:x;base64,"))
    assert made == b'"data:x;base64,' + base64.b64encode(data) + b'"'


def test_an_image_with_a_side_that_is_too_long_is_described() -> None:
    image = file("image/png", png(8001, 10))
    assert fit_file(image, ANTHROPIC_FILES) == NoteInput(
        text="[A file (image/png) is not shown: 8001 x 10 pixels, and a side may have 8000.]"
    )
    assert isinstance(fit_file(image, RESPONSES_FILES), ImageInput)

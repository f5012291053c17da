"""What becomes of files on their way to a model, and how efforts are fitted."""

import pytest

from chatd.domain.model.protocol import Effort, PromptFile
from chatd.providers.effort import SCALE, budget_tokens, lowered, raised
from chatd.providers.files import (
    ANTHROPIC,
    COMPLETIONS,
    GEMINI,
    MIB,
    RESPONSES,
    Accepts,
    Document,
    Fitted,
    Image,
    Media,
    Note,
    TextFile,
    as_text,
    fit,
    is_text,
    media_type_of,
)

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
def test_an_images_own_bytes_tell_its_type(media_type: str, data: bytes, found: str) -> None:
    assert media_type_of(file(media_type, data)) == found


@pytest.mark.covers("providers-20")
@pytest.mark.parametrize("accepts", [ANTHROPIC, RESPONSES, COMPLETIONS, GEMINI])
@pytest.mark.parametrize(
    ("given", "becomes"),
    [
        (file("image/png", PNG), Image),
        (file("application/pdf", b"%PDF-1"), Document),
        (file("text/markdown"), TextFile),
        (file("application/json"), TextFile),
        (file("application/vnd.api+json"), TextFile),
        (file("image/svg+xml", b"<svg/>"), TextFile),
        (file("application/zip"), Note),
        (file("image/tiff"), Note),
        (file("image/png", b""), Note),
        (file("text/plain", b""), Note),
    ],
)
def test_a_file_is_shown_or_spoken_of(
    given: PromptFile, becomes: type[Fitted], accepts: Accepts
) -> None:
    assert isinstance(fit(given, accepts), becomes)


def test_sound_is_for_those_who_hear() -> None:
    sound = file("audio/mpeg", b"tune")
    assert fit(sound, GEMINI) == Media(media_type="audio/mpeg", data=b"tune")
    assert isinstance(fit(sound, ANTHROPIC), Note)


@pytest.mark.covers("providers-20")
def test_what_is_too_large_is_spoken_of() -> None:
    image = file("image/png", PNG + b"x" * (5 * MIB - len(PNG)), "big.png")
    assert fit(image, ANTHROPIC) == Note(
        text="[The file big.png (image/png) is not shown: larger than 5 MiB.]"
    )
    assert isinstance(fit(file("image/png", image.data[:-1]), ANTHROPIC), Image)
    pages = file("application/pdf", b"x" * 32 * MIB)
    assert fit(pages, ANTHROPIC) == Note(
        text="[A file (application/pdf) is not shown: larger than 32 MiB.]"
    )


def test_text_is_text_even_if_some_of_it_is_not() -> None:
    made = fit(file("text/plain", b"a\xffb", "a.txt"), ANTHROPIC)
    assert made == TextFile(text="a\ufffdb", name="a.txt")
    assert as_text(TextFile(text="b", name="a.txt")) == "[File: a.txt]\nb"
    assert as_text(TextFile(text="b", name=None)) == "b"


@pytest.mark.parametrize("kind", ["text/x-python", "application/yaml", "application/atom+xml"])
def test_source_code_is_text(kind: str) -> None:
    assert is_text(kind)
    assert not is_text("application/pdf")


# Effort


@pytest.mark.parametrize(
    ("asked", "allowed", "up", "down"),
    [
        ("low", ("low", "high"), "low", "low"),
        ("medium", ("low", "high"), "high", "low"),
        ("none", ("low", "high"), "low", "low"),
        ("max", ("low", "high"), "high", "high"),
        ("minimal", ("max", "low"), "low", "low"),
    ],
)
def test_an_effort_is_fitted_to_what_there_is(
    asked: Effort, allowed: tuple[Effort, ...], up: Effort, down: Effort
) -> None:
    assert raised(asked, allowed) == up
    assert lowered(asked, allowed) == down


def test_more_effort_is_never_fewer_tokens() -> None:
    for most in (100, 1024, 1025, 2000, 32_000):
        budgets = [budget_tokens(step, most) or 0 for step in SCALE]
        assert budgets == sorted(budgets)
        assert all(budget == 0 or 1024 <= budget < most for budget in budgets)
    assert budget_tokens("none", 32_000) is None
    assert budget_tokens("high", 1024) is None
    assert budget_tokens("low", 1025) == 1024

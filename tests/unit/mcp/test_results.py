"""Results of MCP tools as tool outputs, and error texts without secrets."""

from base64 import b64encode

import pytest

from chatd.domain.mcp.results import NO_REASON_TEXT, convert_result, error_text, redact_url

PNG = b64encode(b"png bytes").decode()
WAV = b64encode(b"wav bytes").decode()


def text_of(*content: object, **more: object) -> str:
    return convert_result({"content": list(content), **more}).text


def text(value: object) -> dict[str, object]:
    return {"type": "text", "text": value}


def test_texts_are_joined_by_lines() -> None:
    assert text_of(text("a"), text("b")) == "a\nb"


def test_an_image_alone_is_media() -> None:
    output = convert_result({"content": [{"type": "image", "data": PNG, "mimeType": "image/png"}]})
    assert output.media is not None
    assert (output.media.media_type, output.media.data) == ("image/png", b"png bytes")
    assert output.text == ""


def test_the_first_of_several_binaries_wins_and_a_note_names_the_others() -> None:
    output = convert_result(
        {
            "content": [
                {"type": "audio", "data": WAV, "mimeType": "audio/wav"},
                {"type": "image", "data": PNG, "mimeType": "image/png"},
            ]
        }
    )
    assert output.media is not None
    assert output.media.media_type == "audio/wav"
    assert output.text == "[9 bytes of image/png were left out]"


def test_beside_text_a_binary_is_only_named() -> None:
    output = convert_result(
        {"content": [text("see"), {"type": "image", "data": PNG, "mimeType": "image/png"}]}
    )
    assert output.media is None
    assert output.text == "see\n[9 bytes of image/png were left out]"


def test_embedded_resources_are_text_or_media() -> None:
    assert text_of({"type": "resource", "resource": {"uri": "a:b", "text": "inside"}}) == "inside"
    blob = {"type": "resource", "resource": {"uri": "a:b", "blob": PNG, "mimeType": "image/png"}}
    output = convert_result({"content": [blob]})
    assert output.media is not None
    assert output.media.data == b"png bytes"


def test_a_link_is_a_label() -> None:
    link = {"type": "resource_link", "name": "Log", "uri": "file:///log", "description": "of today"}
    assert text_of(link) == "[resource Log <file:///log>: of today]"


@pytest.mark.parametrize("part", [{"type": "hologram"}, {}, None, 7])
def test_an_unknown_part_is_noted(part: object) -> None:
    assert text_of(text("a"), part).startswith("a\n[content of unknown type")


def test_base64_that_cannot_be_read_is_a_note() -> None:
    assert text_of({"type": "image", "data": "%%%", "mimeType": "image/png"}) == (
        "[image/png that is not valid base64]"
    )


def test_structured_content_is_appended_once() -> None:
    assert text_of(text("sum"), structuredContent={"a": 1}) == 'sum\n{"a":1}'
    assert text_of(text('{ "a": 1 }'), structuredContent={"a": 1}) == '{ "a": 1 }'
    assert text_of(text("3"), structuredContent={"result": 3}) == "3"
    assert text_of(text("x"), structuredContent={"result": "x"}) == "x"
    assert text_of(text("x"), text("y"), structuredContent={"result": ["x", "z"]}) == (
        'x\ny\n{"result":["x","z"]}'
    )
    assert text_of(structuredContent={"a": 1}) == '{"a":1}'


def test_the_error_flag_is_kept_and_never_without_a_text() -> None:
    failed = convert_result({"content": [text("no such row")], "isError": True})
    assert (failed.is_error, failed.text) == (True, "no such row")
    silent = convert_result({"content": [], "isError": True})
    assert (silent.is_error, silent.text) == (True, NO_REASON_TEXT)


@pytest.mark.covers("mcp-3")
def test_text_is_valid_and_bounded() -> None:
    assert text_of(text("a\ud800b")) == "a�b"
    many = text_of(*[text("x")] * 1500)
    assert many.endswith("[500 more parts were left out]")


@pytest.mark.parametrize("content", [None, "text", {}])
def test_content_of_the_wrong_shape_is_nothing(content: object) -> None:
    assert convert_result({"content": content}).text == ""


@pytest.mark.covers("mcp-8")
def test_urls_in_errors_lose_credentials_queries_and_fragments() -> None:
    url = "https://user:pass@host.example:8443/mcp?token=secret#part"
    assert redact_url(url) == "https://host.example:8443/mcp"
    assert error_text(f"GET '{url}'\nfailed, see http://a/b?c=d") == (
        "GET 'https://host.example:8443/mcp' failed, see http://a/b"
    )
    assert redact_url("not a url") == "not a url"

"""Encoding histories for Gemini."""

import base64

import msgspec
import pytest
from msgspec import UNSET, Raw

from chatd.domain.ids import ToolCallId
from chatd.domain.model.protocol import (
    PromptCall,
    PromptFile,
    PromptMessage,
    PromptReasoning,
    PromptResult,
    PromptText,
)
from chatd.providers.gemini.gemini_decoder import GeminiDecoder
from chatd.providers.gemini.gemini_models import GoogleOptions
from chatd.providers.gemini.gemini_request import SKIP_SIGNATURE, encode_request, gemini_tool_names
from tests.support.providers.gemini import stream
from tests.support.providers.gemini_request import Content, GeminiRefusal, check
from tests.support.providers.prompts import call, message, replayed, request, result
from tests.support.providers.stream_reader import answer_of, read_whole

OLD = "gemini-2.5-flash"
NEW = "gemini-3-flash-preview"
PNG = b"\x89PNG\r\n\x1a\n rest"

Object = dict[str, object]


def contents(*messages: PromptMessage, model: str = OLD) -> list[Object]:
    """The contents as sent, after the fake's check."""
    data = encoded(*messages, model=model)
    return msgspec.convert(msgspec.json.decode(data, type=Object)["contents"], list[Object])


def turns(*messages: PromptMessage, model: str = OLD) -> tuple[Content, ...]:
    return check(model, encoded(*messages, model=model)).contents


def encoded(*messages: PromptMessage, model: str) -> bytes:
    asked = request(*messages, model=model)
    data = encode_request(asked, GoogleOptions(), gemini_tool_names(asked))
    check(model, data)
    return data


def history(name: str, model: str) -> list[PromptMessage]:
    """A recorded answer with results for its calls."""
    names = gemini_tool_names(request(model=model))
    events = read_whole(
        lambda: GeminiDecoder(model=model, names=names, call_prefix="call"), stream(name)
    )
    return [message("user", "Hi"), *replayed(answer_of(events))]


@pytest.mark.covers("providers-12")
def test_all_leading_system_messages_are_joined() -> None:
    data = encoded(
        message("system", "One."), message("system", "Two."), message("user", "Hi"), model=OLD
    )
    assert msgspec.json.decode(data) == {
        "systemInstruction": {"parts": [{"text": "One.\n\nTwo."}]},
        "contents": [{"role": "user", "parts": [{"text": "Hi"}]}],
        "generationConfig": {"thinkingConfig": {"includeThoughts": True}},
    }


def test_a_later_system_message_is_sent_as_the_user() -> None:
    assert contents(message("user", "Hi"), message("system", "Be brief.")) == [
        {"role": "user", "parts": [{"text": "Hi"}]},
        {"role": "user", "parts": [{"text": "Be brief."}]},
    ]


def test_results_are_in_one_turn_in_the_order_of_their_calls() -> None:
    found = contents(
        message("user", "Hi"),
        message("assistant", "Looking.", call("a"), call("b", "get_weather", b'{"city":"Rome"}')),
        message("tool", result("b", '{"sky":"blue"}', "get_weather")),
        message("tool", result("a", "noon")),
        message("user", "And?"),
    )
    assert [turn["role"] for turn in found] == ["user", "model", "user", "user"]
    assert [turn["parts"] for turn in found] == [
        [{"text": "Hi"}],
        [
            {"text": "Looking."},
            {"functionCall": {"name": "now", "args": {}}},
            {"functionCall": {"name": "get_weather", "args": {"city": "Rome"}}},
        ],
        [
            {"functionResponse": {"name": "now", "response": {"output": "noon"}}},
            {"functionResponse": {"name": "get_weather", "response": {"sky": "blue"}}},
        ],
        [{"text": "And?"}],
    ]
    assert {key for turn in found for key in turn} == {"role", "parts"}


@pytest.mark.parametrize(
    ("answered", "response"),
    [
        (result("a", "plain"), {"output": "plain"}),
        (result("a", "[1]"), {"output": "[1]"}),
        (result("a", '{"a":1}'), {"a": 1}),
        (result("a", '{"a":'), {"output": '{"a":'}),
        (result("a", '{"a":' * 3000), {"output": '{"a":' * 3000}),
        (result("a", "boom", is_error=True), {"error": "boom"}),
        (result("a", '{"a":1}', is_error=True), {"error": '{"a":1}'}),
    ],
)
def test_a_result_is_always_sent_as_an_object(answered: PromptResult, response: Object) -> None:
    found = contents(
        message("user", "Hi"), message("assistant", call("a")), message("tool", answered)
    )
    assert found[2]["parts"] == [{"functionResponse": {"name": "now", "response": response}}]


def test_consecutive_answers_are_one_turn() -> None:
    found = contents(
        message("user", "Hi"),
        message("assistant", "Half an ans"),
        message("assistant", call("a")),
        message("tool", result("a")),
    )
    assert [turn["role"] for turn in found] == ["user", "model", "user"]


@pytest.mark.covers("providers-12")
@pytest.mark.parametrize("name", ["thinking", "signed_text", "calls_parallel", "search_and_call"])
def test_signatures_are_sent_back_unchanged_at_their_parts(name: str) -> None:
    sent = msgspec.json.encode(contents(*history(name, NEW), model=NEW))
    got = stream(name)
    marks = got.split(b'"thoughtSignature": "')[1:]
    assert marks
    back = sent.split(b'"thoughtSignature":"')[1:]
    assert [mark.split(b'"')[0] for mark in back] == [mark.split(b'"')[0] for mark in marks]


def test_a_signed_text_is_sent_back_in_its_original_parts() -> None:
    [_, model] = contents(*history("signed_text", NEW), model=NEW)
    signature = stream("signed_text").split(b'"thoughtSignature": "')[1].split(b'"')[0].decode()
    expected = [{"text": "Call it", "thoughtSignature": signature}, {"text": " Ada, or Grace."}]
    assert model["parts"] == expected


def test_only_ids_of_the_api_are_sent_back() -> None:
    given = turns(*history("calls_parallel", NEW), model=NEW)[2].responses
    assert [response.id for response in given] == ["8f2k1q0z", "9p3m7x4c", "1b5v8n2m"]
    made_up = turns(*history("calls_without_ids", OLD), model=OLD)[2].responses
    assert [response.id for response in made_up] == [None, None, None]


def test_another_model_gets_only_the_skip_signature() -> None:
    messages = history("calls_parallel", "gemini-3-pro-preview")
    new = turns(*messages, model=NEW)[1].parts
    assert [part.thought_signature for part in new] == [None, SKIP_SIGNATURE, None, None]
    old = turns(*messages, model=OLD)[1].parts
    assert [part.thought_signature for part in old] == [None, None, None, None]


def test_a_search_is_sent_back_unchanged_unless_its_result_is_missing() -> None:
    messages = history("search_and_call", NEW)
    searched, found, called = turns(*messages, model=NEW)[1].parts
    assert searched.tool_call is not UNSET
    assert found.tool_response is not UNSET
    assert bytes(searched.tool_call) in stream("search_and_call")
    assert bytes(found.tool_response) in stream("search_and_call")
    answer = messages[1].parts
    cut = PromptMessage(role="assistant", parts=(answer[0], answer[2]))
    assert turns(messages[0], cut, *messages[2:], model=NEW)[1].parts == (called,)


def test_metadata_of_other_providers_is_left_out() -> None:
    foreign = Raw(b'{"anthropic":{"signature":"abc"}}')
    found = contents(
        message("user", "Hi"),
        message(
            "assistant",
            PromptReasoning(text="Hmm.", provider_metadata=foreign),
            PromptText(text="Yes.", provider_metadata=foreign),
            PromptCall(
                id=ToolCallId("s"), name="web_search", input=Raw(b"{}"), provider_executed=True
            ),
        ),
    )
    assert found[1] == {"role": "model", "parts": [{"text": "Yes."}]}


def test_files_are_sent_inline_or_as_text() -> None:
    pdf = b"%PDF-1.7"
    found = contents(
        message(
            "user",
            "See",
            PromptFile(media_type="image/png", data=PNG),
            PromptFile(media_type="application/pdf", data=pdf, name="a.pdf"),
            PromptFile(media_type="text/csv", data=b"a,b", name="t.csv"),
            PromptFile(media_type="application/zip", data=b"PK", name="z.zip"),
        )
    )
    assert found[0]["parts"] == [
        {"text": "See"},
        {"inlineData": {"mimeType": "image/png", "data": base64.b64encode(PNG).decode()}},
        {"inlineData": {"mimeType": "application/pdf", "data": base64.b64encode(pdf).decode()}},
        {"text": "[File: t.csv]\na,b"},
        {
            "text": "[The file z.zip (application/zip) is not shown:"
            " this model does not take files of this type.]"
        },
    ]


def test_an_image_of_a_tool_is_in_its_response_or_after_it() -> None:
    picture = PromptFile(media_type="image/png", data=PNG)
    messages = (
        message("user", "Hi"),
        message("assistant", call("a")),
        message("tool", result("a", "shot", media=picture)),
    )
    inline = {"inlineData": {"mimeType": "image/png", "data": base64.b64encode(PNG).decode()}}
    response = {"name": "now", "response": {"output": "shot"}, "parts": [inline]}
    new = contents(*messages, model=NEW)[2:]
    assert new == [{"role": "user", "parts": [{"functionResponse": response}]}]
    assert contents(*messages, model=OLD)[3:] == [{"role": "user", "parts": [inline]}]


def test_a_growing_history_keeps_its_prefix() -> None:
    messages = history("calls_parallel", NEW)
    shorter = msgspec.json.encode(contents(*messages, model=NEW))
    longer = msgspec.json.encode(contents(*messages, message("user", "More"), model=NEW))
    assert longer.startswith(shorter[:-1])


USER: Object = {"role": "user", "parts": [{"text": "Hi"}]}
CALL: Object = {"role": "model", "parts": [{"functionCall": {"name": "now", "args": {}}}]}
ANSWER: Object = {
    "role": "user",
    "parts": [{"functionResponse": {"name": "now", "response": {"output": "noon"}}}],
}
OTHER: Object = {
    "role": "user",
    "parts": [{"functionResponse": {"name": "then", "response": {"output": "noon"}}}],
}


@pytest.mark.parametrize(
    ("model", "bad"),
    [
        (OLD, {"contents": list[Object]()}),
        (OLD, {"contents": [USER], "surprise": 1}),
        (OLD, {"contents": [{"role": "assistant", "parts": [{"text": "x"}]}]}),
        (OLD, {"contents": [{"role": "user", "parts": [Object()]}]}),
        (OLD, {"contents": [{"role": "user", "parts": list[Object]()}]}),
        (OLD, {"contents": [CALL, ANSWER]}),
        (OLD, {"contents": [USER, CALL]}),
        (OLD, {"contents": [USER, CALL, USER]}),
        (OLD, {"contents": [USER, ANSWER]}),
        (OLD, {"contents": [USER, CALL, OTHER]}),
        (NEW, {"contents": [USER, CALL, ANSWER]}),
        (OLD, {"contents": [USER], "generationConfig": {"responseJsonSchema": Object()}}),
    ],
)
def test_the_fake_rejects_what_the_api_rejects(model: str, bad: Object) -> None:
    with pytest.raises(GeminiRefusal):
        check(model, msgspec.json.encode(bad))

"""What Gemini is sent."""

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
from chatd.providers.gemini.contents import NO_SIGNATURE
from chatd.providers.gemini.decode import Decoder
from chatd.providers.gemini.encode import encode, tool_names
from chatd.providers.options_google import GoogleOptions
from tests.support.providers.gemini import stream
from tests.support.providers.gemini_request import Content, Refused, check
from tests.support.providers.prompts import call, message, replayed, request, result
from tests.support.providers.reading import answer_of, read_whole

OLD = "gemini-2.5-flash"
NEW = "gemini-3-flash-preview"
PNG = b"\x89PNG\r\n\x1a\n rest"

Object = dict[str, object]


def contents(*messages: PromptMessage, model: str = OLD) -> list[Object]:
    """As sent, and as the API would take it."""
    data = encoded(*messages, model=model)
    return msgspec.convert(msgspec.json.decode(data, type=Object)["contents"], list[Object])


def turns(*messages: PromptMessage, model: str = OLD) -> tuple[Content, ...]:
    return check(model, encoded(*messages, model=model)).contents


def encoded(*messages: PromptMessage, model: str) -> bytes:
    asked = request(*messages, model=model)
    data = encode(asked, GoogleOptions(), tool_names(asked))
    check(model, data)
    return data


def history(name: str, model: str) -> list[PromptMessage]:
    """A recorded answer, and what came of its calls."""
    names = tool_names(request(model=model))
    events = read_whole(lambda: Decoder(model=model, names=names, call_prefix="call"), stream(name))
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


def test_a_later_system_message_is_said_by_the_user() -> None:
    assert contents(message("user", "Hi"), message("system", "Be brief.")) == [
        {"role": "user", "parts": [{"text": "Hi"}]},
        {"role": "user", "parts": [{"text": "Be brief."}]},
    ]


def test_results_stand_in_one_turn_in_the_order_of_their_calls() -> None:
    assert contents(
        message("user", "Hi"),
        message("assistant", "Looking.", call("a"), call("b", "get_weather", b'{"city":"Rome"}')),
        message("tool", result("b", '{"sky":"blue"}', "get_weather")),
        message("tool", result("a", "noon")),
        message("user", "And?"),
    ) == [
        {"role": "user", "parts": [{"text": "Hi"}]},
        {
            "role": "model",
            "parts": [
                {"text": "Looking."},
                {"functionCall": {"name": "now", "args": {}}},
                {"functionCall": {"name": "get_weather", "args": {"city": "Rome"}}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"name": "now", "response": {"output": "noon"}}},
                {"functionResponse": {"name": "get_weather", "response": {"sky": "blue"}}},
            ],
        },
        {"role": "user", "parts": [{"text": "And?"}]},
    ]


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
def test_a_result_is_an_object_whatever_it_is(answered: PromptResult, response: Object) -> None:
    found = contents(
        message("user", "Hi"),
        message("assistant", call("a")),
        message("tool", answered),
    )
    assert found[2]["parts"] == [{"functionResponse": {"name": "now", "response": response}}]


def test_two_answers_in_a_row_are_one_turn() -> None:
    found = contents(
        message("user", "Hi"),
        message("assistant", "Half an ans"),
        message("assistant", call("a")),
        message("tool", result("a")),
    )
    assert [turn["role"] for turn in found] == ["user", "model", "user"]


@pytest.mark.covers("providers-12")
@pytest.mark.parametrize("name", ["thinking", "signed_text", "calls_parallel", "search_and_call"])
def test_signatures_go_back_byte_for_byte_where_they_came(name: str) -> None:
    sent = msgspec.json.encode(contents(*history(name, NEW), model=NEW))
    got = stream(name)
    marks = got.split(b'"thoughtSignature": "')[1:]
    assert marks
    back = sent.split(b'"thoughtSignature":"')[1:]
    assert [mark.split(b'"')[0] for mark in back] == [mark.split(b'"')[0] for mark in marks]


def test_a_signed_text_goes_back_in_the_pieces_in_which_it_came() -> None:
    [_, model] = contents(*history("signed_text", NEW), model=NEW)
    signature = stream("signed_text").split(b'"thoughtSignature": "')[1].split(b'"')[0].decode()
    assert model["parts"] == [
        {"text": "Call it", "thoughtSignature": signature},
        {"text": " Ada, or Grace."},
    ]


def test_ids_go_back_only_if_they_came_from_there() -> None:
    given = turns(*history("calls_parallel", NEW), model=NEW)[2].responses
    assert [response.id for response in given] == ["8f2k1q0z", "9p3m7x4c", "1b5v8n2m"]
    made_up = turns(*history("calls_without_ids", OLD), model=OLD)[2].responses
    assert [response.id for response in made_up] == [None, None, None]


def test_another_model_gets_no_signatures_but_the_one_that_stands_for_none() -> None:
    told = history("calls_parallel", "gemini-3-pro-preview")
    new = turns(*told, model=NEW)[1].parts
    assert [part.thought_signature for part in new] == [None, NO_SIGNATURE, None, None]
    old = turns(*told, model=OLD)[1].parts
    assert [part.thought_signature for part in old] == [None, None, None, None]


def test_a_search_goes_back_as_it_came_unless_its_result_is_missing() -> None:
    told = history("search_and_call", NEW)
    searched, found, called = turns(*told, model=NEW)[1].parts
    assert searched.tool_call is not UNSET
    assert found.tool_response is not UNSET
    assert bytes(searched.tool_call) in stream("search_and_call")
    assert bytes(found.tool_response) in stream("search_and_call")
    answer = told[1].parts
    cut = PromptMessage(role="assistant", parts=(answer[0], answer[2]))
    assert turns(told[0], cut, *told[2:], model=NEW)[1].parts == (called,)


def test_what_other_vendors_remembered_is_left_out() -> None:
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


def test_files_go_inline_or_as_words() -> None:
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


def test_a_picture_from_a_tool_goes_into_its_response_or_after_it() -> None:
    picture = PromptFile(media_type="image/png", data=PNG)
    told = (
        message("user", "Hi"),
        message("assistant", call("a")),
        message("tool", result("a", "shot", media=picture)),
    )
    inline = {"inlineData": {"mimeType": "image/png", "data": base64.b64encode(PNG).decode()}}
    new = contents(*told, model=NEW)[2:]
    assert new == [
        {
            "role": "user",
            "parts": [
                {
                    "functionResponse": {
                        "name": "now",
                        "response": {"output": "shot"},
                        "parts": [inline],
                    }
                }
            ],
        }
    ]
    assert contents(*told, model=OLD)[3:] == [{"role": "user", "parts": [inline]}]


def test_a_conversation_that_grows_keeps_its_beginning() -> None:
    told = history("calls_parallel", NEW)
    shorter = msgspec.json.encode(contents(*told, model=NEW))
    longer = msgspec.json.encode(contents(*told, message("user", "More"), model=NEW))
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
def test_the_fake_refuses_what_the_real_api_refuses(model: str, bad: Object) -> None:
    with pytest.raises(Refused):
        check(model, msgspec.json.encode(bad))

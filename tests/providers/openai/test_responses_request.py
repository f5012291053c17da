"""Encoding Responses API requests."""

from typing import Any

import msgspec
import pytest
from msgspec import Raw

from chatd.domain.model.protocol import (
    ComputerTool,
    ForcedTool,
    ModelRequest,
    PromptCall,
    PromptFile,
    PromptMessage,
    PromptPart,
    PromptReasoning,
    PromptText,
    ToolSpec,
)
from chatd.providers.openai.openai_models import OpenAIOptions
from chatd.providers.openai.responses_decoder import ResponsesDecoder
from chatd.providers.openai.responses_request import encode_request, responses_tool_names
from chatd.providers.tool_schema import ToolNames
from tests.support.providers.openai_responses import event, stream
from tests.support.providers.prompts import call, message, replayed, request, result
from tests.support.providers.stream_reader import answer_of, read_whole

ORIGIN = "my openai"
THINKS, PLAIN = "gpt-5.2", "gpt-4.1"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(8)
PNG_URL = "data:image/png;base64,iVBORw0KGgoAAAAAAAAAAA=="

Fields = dict[str, Any]


def body(model_request: ModelRequest, **options: object) -> Fields:
    chosen = msgspec.convert(options, OpenAIOptions)
    return msgspec.json.decode(
        encode_request(model_request, chosen, responses_tool_names(model_request, chosen), ORIGIN)
    )


def items(*messages: PromptMessage, model: str = THINKS) -> list[Fields]:
    return body(request(*messages, model=model))["input"]


def recorded_answer(name: str, origin: str = ORIGIN) -> list[PromptMessage]:
    """A recorded answer as part of the next request."""
    decoded = read_whole(lambda: ResponsesDecoder(origin, ToolNames(["show_time"])), stream(name))
    return replayed(answer_of(decoded))


def without(found: PromptMessage, kind: type[PromptPart]) -> PromptMessage:
    kept = tuple(part for part in found.parts if not isinstance(part, kind))
    return msgspec.structs.replace(found, parts=kept)


def kinds(found: list[Fields]) -> list[str]:
    return [item["type"] for item in found]


def tool(name: str, schema: object = None) -> ToolSpec:
    given = {"type": "object"} if schema is None else schema
    return ToolSpec(
        name=name, description=f"does {name}", input_schema=Raw(msgspec.json.encode(given))
    )


# Parameters


def test_a_plain_request() -> None:
    model_request = request(message("system", "Be kind."), message("user", "Hi"), model=PLAIN)
    assert body(model_request) == {
        "model": PLAIN,
        "input": [
            {"type": "message", "role": "system", "content": "Be kind."},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        ],
        "stream": True,
        "store": False,
    }


@pytest.mark.covers("providers-7")
def test_a_reasoning_model_gets_the_developer_role_and_no_temperature() -> None:
    model_request = request(
        message("system", "Be kind."),
        message("user", "Hi"),
        model=THINKS,
        temperature=0.5,
        top_p=0.9,
        top_k=3,
        presence_penalty=1.0,
        frequency_penalty=1.0,
        reasoning_effort="max",
    )
    sent = body(model_request, reasoning_summary="auto", log_probs=True, top_log_probs=3)
    assert sent["input"][0]["role"] == "developer"
    assert {key: sent[key] for key in sent if key not in ("input", "model", "stream", "store")} == {
        "include": ["reasoning.encrypted_content"],
        "reasoning": {"effort": "xhigh", "summary": "auto"},
    }


def test_other_models_get_the_temperature_and_no_reasoning() -> None:
    model_request = request(
        model=PLAIN, temperature=0.5, top_p=0.9, top_k=3, reasoning_effort="high"
    )
    sent = body(model_request, top_log_probs=3)
    assert (sent["temperature"], sent["top_p"], sent["top_logprobs"]) == (0.5, 0.9, 3)
    assert sent["include"] == ["message.output_text.logprobs"]
    assert "reasoning" not in sent
    assert "top_k" not in sent


def test_options_decide_for_a_model_with_an_unknown_name() -> None:
    assert "include" not in body(request(model="my-deployment"))
    sent = body(request(model="my-deployment", temperature=1.0), reasoning_effort="low")
    assert sent["reasoning"] == {"effort": "low"}
    assert sent["include"] == ["reasoning.encrypted_content"]
    assert "temperature" not in sent


@pytest.mark.parametrize(
    ("model_request", "option", "sent"), [(1, None, 16), (32_000, None, 32_000), (32_000, 500, 500)]
)
def test_the_limit_of_the_answer(model_request: int, option: int | None, sent: int) -> None:
    found = body(
        request(model=PLAIN, max_output_tokens=model_request), max_completion_tokens=option
    )
    assert found["max_output_tokens"] == sent


def test_options_become_fields_of_the_request() -> None:
    sent = body(
        request(model=PLAIN),
        text_verbosity="low",
        store=False,
        prompt_cache_key="k",
        service_tier="flex",
        include=["file_search_call.results"],
        instructions="Hurry.",
        user="u",
        metadata={"a": "b"},
        safety_identifier="s",
        max_tool_calls=4,
        parallel_tool_calls=True,
    )
    del sent["input"], sent["model"], sent["stream"]
    assert sent == {
        "text": {"verbosity": "low"},
        "store": False,
        "prompt_cache_key": "k",
        "service_tier": "flex",
        "include": ["file_search_call.results"],
        "instructions": "Hurry.",
        "user": "u",
        "metadata": {"a": "b"},
        "safety_identifier": "s",
        "max_tool_calls": 4,
    }


STRICT = {
    "type": "object",
    "properties": {"a": {"type": "string"}},
    "required": ["a"],
    "additionalProperties": False,
}
LOOSE = {"type": "object", "properties": {"a": {"type": "string"}}}


@pytest.mark.parametrize(
    ("schema", "model_request", "strict"),
    [(STRICT, True, True), (STRICT, False, False), (LOOSE, True, False)],
)
def test_strict_is_set_only_if_the_schema_allows_it(
    schema: object, *, model_request: bool, strict: bool
) -> None:
    found = request(
        model=PLAIN, tools=(tool("t", schema),), output_schema=Raw(msgspec.json.encode(schema))
    )
    sent = body(found, strict_json_schema=model_request)
    assert sent["tools"][0]["strict"] is strict
    expected = {"type": "json_schema", "name": "answer", "schema": schema, "strict": strict}
    assert sent["text"]["format"] == expected


def test_a_structured_answer_can_be_a_plain_json_object() -> None:
    model_request = request(model=PLAIN, output_schema=Raw(b'{"type":"object"}'))
    assert body(model_request, structured_outputs=False)["text"] == {
        "format": {"type": "json_object"}
    }


# Tools


def test_tools_are_sorted_under_valid_names() -> None:
    model_request = request(model=PLAIN, tools=(tool("show.time"), tool("read_file")))
    sent = body(model_request, parallel_tool_calls=False)
    assert [found["name"] for found in sent["tools"]] == ["read_file", "show_time"]
    declared = {"type": "function", "name": "read_file", "description": "does read_file"}
    schema: Fields = {"type": "object", "properties": {}}
    assert sent["tools"][0] == {**declared, "parameters": schema, "strict": False}
    assert sent["tool_choice"] == "auto"
    assert sent["parallel_tool_calls"] is False


def test_web_search_has_its_arguments_and_reserves_its_name() -> None:
    model_request = request(model=THINKS, tools=(tool("web_search"),))
    sent = body(
        model_request,
        web_search_enabled=True,
        search_context_size="low",
        allowed_domains=["example.org"],
    )
    function, search = sent["tools"]
    assert function["name"].startswith("web_search_")
    assert search == {
        "type": "web_search",
        "search_context_size": "low",
        "filters": {"allowed_domains": ["example.org"]},
    }
    assert "web_search_call.action.sources" in sent["include"]


@pytest.mark.parametrize(
    ("model", "tool", "truncation"),
    [
        ("gpt-5.4", {"type": "computer"}, None),
        (
            "computer-use-preview",
            {
                "type": "computer_use_preview",
                "display_width": 1280,
                "display_height": 800,
                "environment": "linux",
            },
            "auto",
        ),
    ],
)
def test_the_computer_tool_has_the_type_of_the_model(
    model: str, tool: Fields, truncation: str | None
) -> None:
    screen = ComputerTool(width_px=1280, height_px=800)
    sent = body(request(model=model, computer=screen, tool_choice=ForcedTool(name="computer")))
    assert sent["tools"] == [tool]
    assert sent.get("truncation") == truncation
    assert sent["tool_choice"] == {"type": tool["type"]}


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("none", "none"),
        ("required", "required"),
        (ForcedTool(name="show.time"), {"type": "function", "name": "show_time"}),
    ],
)
def test_a_tool_can_be_required(choice: object, sent: object) -> None:
    model_request = request(model=PLAIN, tools=(tool("show.time"),), tool_choice=choice)
    assert body(model_request)["tool_choice"] == sent


def test_without_tools_the_tool_choice_is_absent() -> None:
    assert "tool_choice" not in body(request(model=PLAIN, tool_choice="none"))


# Answers


def test_an_answer_is_sent_back_unchanged() -> None:
    sent = items(message("user", "Hi"), *recorded_answer("tools"))
    spoken = ["message", "reasoning", "message"]
    assert kinds(sent) == [*spoken, *["function_call"] * 2, *["function_call_output"] * 2]
    assert msgspec.json.encode(sent[1]) in stream("tools")
    said: Fields = {"type": "output_text", "text": "I will look at both files.", "annotations": []}
    head = {"type": "message", "id": "msg_tools01", "role": "assistant", "status": "completed"}
    assert sent[2] == {**head, "phase": "commentary", "content": [said]}
    head = {"type": "function_call", "id": "fc_tools01", "call_id": "call_aaa111"}
    assert sent[3] == {**head, "name": "read_file", "arguments": '{"path":"a.txt"}'}


def test_texts_are_grouped_into_their_original_messages() -> None:
    def spoken(own: str, phase: str, *texts: str) -> Fields:
        content = [{"type": "output_text", "text": text} for text in texts]
        return {"type": "message", "id": own, "phase": phase, "content": content}

    answered = [spoken("msg_1", "commentary", "a"), spoken("msg_2", "final_answer", "b", "c")]
    data = b"".join(
        event("response.output_item.done", output_index=at, item=item)
        for at, item in enumerate(answered)
    )
    ended = data + event("response.completed", response={})
    answer = answer_of(read_whole(lambda: ResponsesDecoder(ORIGIN, ToolNames([])), ended))
    sent = items(message("user", "Hi"), *replayed(answer))[1:]
    told = [(one["id"], one["phase"], [part["text"] for part in one["content"]]) for one in sent]
    assert told == [("msg_1", "commentary", ["a"]), ("msg_2", "final_answer", ["b", "c"])]


def test_a_search_is_sent_back_with_the_reasoning_before_it() -> None:
    sent = items(message("user", "Hi"), *recorded_answer("web_search"))[1:]
    assert [item["id"] for item in sent] == [
        *("rs_search01", "ws_search01", "rs_search02", "ws_search02"),
        *("rs_search03", "msg_search01"),
    ]
    assert msgspec.json.encode(sent[1]) in stream("web_search")


def test_unknown_items_are_sent_back() -> None:
    sent = items(message("user", "Hi"), *recorded_answer("unknown"))[1:]
    assert kinds(sent) == ["mcp_list_tools", "reasoning", "thing_of_the_future", "message"]
    assert sent[2]["payload"] == {"a": [1, 2.5, None, "é"]}


@pytest.mark.covers("providers-7")
def test_without_their_reasoning_items_lose_ids_and_searches_are_left_out() -> None:
    spoken, *results = recorded_answer("tools")
    sent = items(message("user", "Hi"), without(spoken, PromptReasoning), *results)[1:]
    assert kinds(sent)[:3] == ["message", "function_call", "function_call"]
    assert all("id" not in item for item in sent)
    assert sent[0] == {
        "type": "message",
        "role": "assistant",
        "phase": "commentary",
        "content": "I will look at both files.",
    }
    [searched] = recorded_answer("web_search")
    sent = items(message("user", "Hi"), without(searched, PromptReasoning))[1:]
    assert kinds(sent) == ["message"]


CALLED = {"type": "function_call", "call_id": "c", "name": "t", "arguments": "{}"}
SPOKEN = {"type": "message", "content": [{"type": "output_text", "text": "Hello"}]}


@pytest.mark.parametrize(
    ("item", "own", "sent"),
    [
        (CALLED, "fc_1", "fc_1"),
        (CALLED, "call_1", None),
        (CALLED, None, None),
        (SPOKEN, "msg_1", "msg_1"),
        (SPOKEN, "fc_1", None),
        (SPOKEN, None, None),
    ],
)
def test_an_id_without_the_prefix_of_its_type_is_left_out(
    item: Fields, own: str | None, sent: str | None
) -> None:
    item = {**item, "id": own}
    data = event("response.output_item.done", output_index=0, item=item)
    ended = data + event("response.completed", response={})
    answer = answer_of(read_whole(lambda: ResponsesDecoder(ORIGIN, ToolNames([])), ended))
    assert items(message("user", "Hi"), *replayed(answer))[1].get("id") == sent


def test_reasoning_without_a_following_item_is_left_out() -> None:
    [searched] = recorded_answer("web_search")
    sent = items(message("user", "Hi"), without(searched, PromptCall))[1:]
    assert [item["id"] for item in sent] == ["rs_search03", "msg_search01"]
    thought, spoken = recorded_answer("reasoning")[0].parts
    assert isinstance(spoken, PromptText)
    interrupted = message("assistant", thought, spoken.text)
    assert kinds(items(message("user", "Hi"), interrupted)[1:]) == ["message"]


def test_reasoning_that_is_not_encrypted_is_left_out() -> None:
    spoken = message("assistant", PromptReasoning(text="hm"), "Hello")
    assert kinds(items(message("user", "Hi"), spoken)[1:]) == ["message"]


def test_reasoning_without_encrypted_content_is_left_out() -> None:
    unsealed = stream("reasoning").replace(b"encrypted_content", b"some_other_content")
    decoded = read_whole(lambda: ResponsesDecoder(ORIGIN, ToolNames([])), unsealed)
    [sent] = items(message("user", "Hi"), *replayed(answer_of(decoded)))[1:]
    assert (sent["type"], sent.get("id"), sent["phase"]) == ("message", None, "final_answer")


def test_plain_reasoning_of_other_servers_is_sent_back() -> None:
    sent = items(message("user", "Hi"), *recorded_answer("nameless"))[1:]
    assert kinds(sent) == ["reasoning", "message"]


@pytest.mark.parametrize("name", ["tools", "reasoning", "web_search", "computer"])
def test_answers_of_other_providers_are_sent_as_plain_messages(name: str) -> None:
    sent = items(message("user", "Hi"), *recorded_answer(name, origin="their openai"))[1:]
    assert not {"reasoning", "web_search_call", "computer_call"} & set(kinds(sent))
    assert all("id" not in item for item in sent)


def test_a_refusal_is_sent_back_as_a_refusal() -> None:
    [sent] = items(message("user", "Hi"), *recorded_answer("refusal"))[1:]
    assert sent["content"] == [
        {"type": "refusal", "refusal": "I'm sorry, I cannot help with that."}
    ]


@pytest.mark.covers("providers-7")
def test_no_request_depends_on_stored_responses() -> None:
    sent = body(request(message("user", "Hi"), *recorded_answer("tools"), model=THINKS))
    assert not {"previous_response_id", "conversation"} & set(sent)
    assert "item_reference" not in kinds(sent["input"])


# Tool results


def test_a_result_may_contain_an_image_or_a_document() -> None:
    picture = PromptFile(media_type="image/png", data=PNG)
    paper = PromptFile(media_type="application/pdf", data=b"%PDF-1", name="a.pdf")
    film = PromptFile(media_type="video/mp4", data=b"x")
    model_request = [
        message("user", "Hi"),
        message("assistant", call("a"), call("b"), call("c")),
        message("tool", result("a", "seen", media=picture)),
        message("tool", result("b", "", media=paper), result("c", "", media=film)),
    ]
    first, second, third = [i for i in items(*model_request) if i["type"] == "function_call_output"]
    assert first["output"] == [
        {"type": "input_text", "text": "seen"},
        {"type": "input_image", "image_url": PNG_URL, "detail": "auto"},
    ]
    assert second["output"] == [
        {
            "type": "input_file",
            "filename": "a.pdf",
            "file_data": "data:application/pdf;base64,JVBERi0x",
        }
    ]
    assert "is not shown" in third["output"][0]["text"]


def test_a_computer_call_gets_a_screenshot_and_acknowledged_checks() -> None:
    spoken, _ = recorded_answer("computer")
    picture = PromptFile(media_type="image/png", data=PNG)
    answered = message("tool", result("call_cu1", "", name="computer", media=picture))
    sent = items(message("user", "Hi"), spoken, answered)[1:]
    assert kinds(sent) == ["reasoning", "computer_call", "computer_call_output"]
    assert sent[2] == {
        "type": "computer_call_output",
        "call_id": "call_cu1",
        "output": {"type": "computer_screenshot", "image_url": PNG_URL, "detail": "original"},
        "acknowledged_safety_checks": [
            {"id": "cu_sc_1", "code": "malicious_instructions", "message": "Check this page."}
        ],
    }


def test_without_a_screenshot_the_last_one_is_repeated_with_the_reason() -> None:
    spoken, _ = recorded_answer("computer")
    picture = PromptFile(media_type="image/png", data=PNG)
    later, _ = recorded_answer("computer_preview")
    sent = items(
        message("user", "Hi"),
        spoken,
        message("tool", result("call_cu1", "", name="computer", media=picture)),
        later,
        message("tool", result("call_cu2", "no display", name="computer", is_error=True)),
    )
    assert kinds(sent)[-2:] == ["computer_call_output", "message"]
    assert sent[-2]["output"]["image_url"] == PNG_URL
    assert "no display" in sent[-1]["content"][0]["text"]
    alone = items(message("user", "Hi"), *recorded_answer("computer_preview"))
    assert alone[-2]["output"]["image_url"].startswith("data:image/png;base64,")


def test_long_ids_are_cut_alike_in_call_and_result() -> None:
    long = "x" * 90
    sent = items(
        message("user", "Hi"), message("assistant", call(long)), message("tool", result(long))
    )
    assert sent[1]["call_id"] == sent[2]["call_id"]
    assert len(sent[1]["call_id"]) <= 64


# User messages


def test_files_are_sent_by_type_or_as_text() -> None:
    model_request = message(
        "user",
        "Look:",
        PromptFile(media_type="image/png", data=PNG),
        PromptFile(media_type="application/pdf", data=b"%PDF-1"),
        PromptFile(media_type="text/csv", data=b"a,b", name="t.csv"),
        PromptFile(media_type="audio/wav", data=b"x", name="s.wav"),
    )
    [sent] = items(model_request)
    assert [part["type"] for part in sent["content"]] == [
        *("input_text", "input_image", "input_file", "input_text", "input_text")
    ]
    assert sent["content"][2]["filename"] == "document.pdf"
    assert sent["content"][3]["text"] == "[File: t.csv]\na,b"
    assert "s.wav" in sent["content"][4]["text"]


def test_unreadable_metadata_is_ignored() -> None:
    for broken in (b"7", b"[]", b'{"openai_responses":{"origin":7}}', b"{", b'{"anthropic":{}}'):
        part = PromptReasoning(text="hm", provider_metadata=Raw(broken))
        spoken = PromptText(text="Hello", provider_metadata=Raw(broken))
        used = call("c", "web_search", metadata=Raw(broken))
        used = msgspec.structs.replace(used, provider_executed=True)
        [sent] = items(message("user", "Hi"), message("assistant", part, used, spoken))[1:]
        assert sent == {"type": "message", "role": "assistant", "content": "Hello"}


def test_extra_fields_are_passed_through() -> None:
    extra = {"truncation": Raw(b'"auto"'), "input": Raw(b"[]"), "text": Raw(b'{"a":1}')}
    sent = body(request(model=THINKS), extra_body=extra, text_verbosity="low")
    assert sent["truncation"] == "auto"
    assert sent["input"]
    assert sent["text"] == {"verbosity": "low", "a": 1}

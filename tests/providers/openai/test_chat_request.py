"""Encoding Chat Completions requests."""

from typing import Any, TypeVar

import msgspec
import pytest
from msgspec import Raw, structs

from chatd.domain.model.protocol import (
    ForcedTool,
    ModelRequest,
    PromptFile,
    PromptMessage,
    PromptReasoning,
    PromptText,
    ToolSpec,
)
from chatd.providers.openai.chat_answer import GEMINI_TAGS, ChatAnswerBuilder
from chatd.providers.openai.chat_decoder import ChatDecoder
from chatd.providers.openai.chat_dialect import (
    COMPATIBLE_DIALECT,
    DEEPSEEK_API_DIALECT,
    DEEPSEEK_DIALECT,
    GOOGLE_DIALECT,
    KIMI_DIALECT,
    OPENAI_DIALECT,
    OPENROUTER_DIALECT,
    REPLAYING_DIALECT,
    VERCEL_DIALECT,
    ChatDialect,
    choose_dialect,
)
from chatd.providers.openai.chat_request import ChatOptions, encode_request
from chatd.providers.openai.chat_wire import ChatMetadata, pack_metadata
from chatd.providers.openai.openai_models import (
    CompatOptions,
    OpenAIOptions,
    OpenRouterOptions,
    VercelOptions,
)
from chatd.providers.openai.openai_tools import build_tool_names
from chatd.providers.options import parse_options
from chatd.providers.tool_schema import ToolNames
from tests.support.providers.openai_chat import stream
from tests.support.providers.prompts import call, message, replayed, request, result
from tests.support.providers.stream_reader import answer_of, read_whole

ORIGIN = "my server"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(8)
PNG_URL = "data:image/png;base64,iVBORw0KGgoAAAAAAAAAAA=="

Fields = dict[str, Any]


def body(
    model_request: ModelRequest,
    options: ChatOptions | None = None,
    dialect: ChatDialect = OPENAI_DIALECT,
) -> Fields:
    chosen = OpenAIOptions() if options is None else options
    return msgspec.json.decode(
        encode_request(model_request, chosen, build_tool_names(model_request), dialect, ORIGIN)
    )


def messages(
    *model_request: PromptMessage, dialect: ChatDialect = COMPATIBLE_DIALECT, model: str = "m"
) -> list[Fields]:
    return body(request(*model_request, model=model), CompatOptions(), dialect)["messages"]


def recorded_answer(name: str, origin: str = ORIGIN) -> list[PromptMessage]:
    """A recorded answer as part of the next request."""
    answer = ChatAnswerBuilder(
        origin, ToolNames([]), thought_tags=GEMINI_TAGS if name.startswith("gemini") else ()
    )
    return replayed(answer_of(read_whole(lambda: ChatDecoder(answer), stream(name))))


_T = TypeVar("_T", OpenRouterOptions, VercelOptions)


def parsed(block: type[_T], options: Fields) -> _T:
    return parse_options(block, Raw(msgspec.json.encode(options)))


def tool(name: str) -> ToolSpec:
    return ToolSpec(name=name, description="", input_schema=Raw(b'{"type":"object"}'))


# Parameters


def test_a_plain_request() -> None:
    model_request = request(message("system", "Be kind."), message("user", "Hi"), model="gpt-4.1")
    assert body(model_request) == {
        "model": "gpt-4.1",
        "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


PENALTIES = {"presence_penalty": 1.0, "frequency_penalty": 0.5}
SAMPLING = {"temperature": 0.5, "top_p": 0.9, "top_k": 3, **PENALTIES}


@pytest.mark.covers("providers-9")
@pytest.mark.parametrize("model", ["o1", "o3-mini", "o4-mini", "gpt-5", "openai/gpt-oss-20b"])
def test_a_reasoning_model_gets_another_limit_field_and_no_temperature(model: str) -> None:
    sent = body(request(model=model, max_output_tokens=9, reasoning_effort="high", **SAMPLING))
    assert sent["max_completion_tokens"] == 9
    assert sent["reasoning_effort"] == "high"
    assert not {"max_tokens", *SAMPLING} & set(sent)


def test_other_models_get_the_sampling_fields_that_their_server_knows() -> None:
    model_request = request(
        model="gpt-4o", max_output_tokens=9, reasoning_effort="high", **SAMPLING
    )
    sent = body(model_request)
    assert sent["max_tokens"] == 9
    assert not {"top_k", "reasoning_effort", "max_completion_tokens"} & set(sent)
    local = request(model="llama", max_output_tokens=9, reasoning_effort="low", **SAMPLING)
    sent = body(local, CompatOptions(), COMPATIBLE_DIALECT)
    assert {key: sent[key] for key in SAMPLING} == SAMPLING
    assert (sent["max_tokens"], sent["reasoning_effort"]) == (9, "low")


def test_options_become_fields_of_the_request() -> None:
    options = OpenAIOptions(
        max_completion_tokens=7,
        text_verbosity="low",
        store=False,
        prompt_cache_key="k",
        service_tier="flex",
        user="u",
        metadata={"a": "b"},
        safety_identifier="s",
        logit_bias={"50256": -100},
        top_log_probs=2,
        prediction=Raw(b'{"type":"content","content":"x"}'),
    )
    sent = body(request(model="gpt-4.1", max_output_tokens=9), options)
    for known in ("model", "messages", "stream", "stream_options"):
        del sent[known]
    assert sent == {
        "max_completion_tokens": 7,
        "verbosity": "low",
        "store": False,
        "prompt_cache_key": "k",
        "service_tier": "flex",
        "user": "u",
        "metadata": {"a": "b"},
        "safety_identifier": "s",
        "logit_bias": {"50256": -100},
        "logprobs": True,
        "top_logprobs": 2,
        "prediction": {"type": "content", "content": "x"},
    }


def test_search_models_get_the_context_size() -> None:
    options = OpenAIOptions(web_search_enabled=True, search_context_size="high")
    sent = body(request(model="gpt-4o-search-preview"), options)
    assert sent["web_search_options"] == {"search_context_size": "high"}
    assert "web_search_options" not in body(request(model="gpt-3.5-turbo"), options)


def test_an_output_schema_is_sent() -> None:
    schema = {"type": "object", "properties": {"title": {"type": "string"}}}
    model_request = request(model="m", output_schema=Raw(msgspec.json.encode(schema)))
    assert body(model_request, CompatOptions(), COMPATIBLE_DIALECT)["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": schema, "strict": False},
    }
    old = OpenAIOptions(structured_outputs=False)
    assert body(model_request, old)["response_format"] == {"type": "json_object"}


# Gateways


def test_openrouter_has_its_reasoning_and_routing_fields() -> None:
    options = parsed(
        OpenRouterOptions,
        {
            "reasoning": {"exclude": True},
            "parallel_tool_calls": False,
            "provider": {"order": ["a"], "allow_fallbacks": False, "sort": "price"},
            "extra_body": {"transforms": ["middle-out"], "messages": [], "stream": False},
            "user": "u",
        },
    )
    model_request = request(
        model="anthropic/claude", reasoning_effort="max", tools=(tool("t"),), top_k=4
    )
    sent = body(model_request, options, OPENROUTER_DIALECT)
    assert sent["reasoning"] == {"exclude": True, "effort": "xhigh"}
    assert sent["provider"] == {"order": ["a"], "allow_fallbacks": False, "sort": "price"}
    assert sent["usage"] == {"include": True}
    assert sent["transforms"] == ["middle-out"]
    assert (sent["parallel_tool_calls"], sent["user"], sent["top_k"]) == (False, "u", 4)
    # Configured fields do not replace required ones.
    assert sent["stream"] is True
    assert sent["messages"]
    assert "reasoning_effort" not in sent


def test_a_configured_token_number_wins_over_an_effort() -> None:
    options = parsed(VercelOptions, {"reasoning": {"max_tokens": 2000}})
    sent = body(request(model="anthropic/claude", reasoning_effort="high"), options, VERCEL_DIALECT)
    assert sent["reasoning"] == {"max_tokens": 2000}


def test_vercel_has_its_routing_fields() -> None:
    options = parsed(
        VercelOptions,
        {"providerOptions": {"order": ["vertex"], "models": ["a/b"]}, "top_logprobs": 2},
    )
    sent = body(request(model="google/gemini-3-flash-preview"), options, VERCEL_DIALECT)
    assert sent["providerOptions"] == {"gateway": {"order": ["vertex"], "models": ["a/b"]}}
    assert sent["top_logprobs"] == 2
    # Google's fields are sent only to Google's address.
    assert "extra_body" not in sent


def test_extra_fields_are_passed_through_to_every_server() -> None:
    extra: Fields = {
        "chat_template_kwargs": {"enable_thinking": False},
        "num_ctx": 32768,
        "temperature": 0.1,
        "reasoning_effort": "low",
        "model": "another",
        "messages": [],
        "stream": False,
        "stream_options": {},
    }
    block = Raw(msgspec.json.encode({"extra_body": extra}))
    model_request = request(model="m", temperature=0.7, reasoning_effort="high")
    for options, dialect in (
        (parse_options(CompatOptions, block), COMPATIBLE_DIALECT),
        (parse_options(OpenAIOptions, block), OPENAI_DIALECT),
        (parse_options(OpenRouterOptions, block), OPENROUTER_DIALECT),
        (parse_options(VercelOptions, block), VERCEL_DIALECT),
    ):
        sent = body(model_request, options, dialect)
        assert sent["chat_template_kwargs"] == {"enable_thinking": False}
        assert (sent["num_ctx"], sent["temperature"]) == (32768, 0.1)
        assert sent["reasoning_effort"] == "low"
        assert (sent["model"], sent["stream"]) == ("m", True)
        assert sent["stream_options"] == {"include_usage": True}
        assert sent["messages"]


def test_extra_objects_are_merged_with_those_of_chatd() -> None:
    options = parsed(
        OpenRouterOptions,
        {
            "provider": {"order": ["a"]},
            "extra_body": {
                "provider": {"max_price": {"prompt": 1}, "order": ["b"]},
                "reasoning": {"summary": "auto"},
            },
        },
    )
    sent = body(request(model="m", reasoning_effort="low"), options, OPENROUTER_DIALECT)
    assert sent["provider"] == {"order": ["b"], "max_price": {"prompt": 1}}
    assert sent["reasoning"] == {"effort": "low", "summary": "auto"}


def test_what_a_request_depends_on_cannot_be_replaced() -> None:
    extra: Fields = {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}}
    options = CompatOptions(
        extra_body={name: Raw(msgspec.json.encode(value)) for name, value in extra.items()}
    )
    forced = request(
        model="m",
        tools=(tool("t"),),
        tool_choice=ForcedTool(name="t"),
        output_schema=Raw(b'{"type":"object"}'),
    )
    sent = body(forced, options, COMPATIBLE_DIALECT)
    assert len(sent["tools"]) == 1
    assert sent["tool_choice"] == "required"
    assert sent["response_format"]["type"] == "json_schema"
    free = body(request(model="m", tools=(tool("t"),)), options, COMPATIBLE_DIALECT)
    assert free["tool_choice"] == "none"


CLAUDE = "anthropic/claude-opus-5"
CACHED = {"type": "ephemeral"}


def test_openrouter_gets_cache_marks_for_claude() -> None:
    history = [
        message("system", "Be kind."),
        message("user", "Hi"),
        message("assistant", call("a"), call("b")),
        message("tool", result("a", "noon")),
        message("tool", result("b", "rain")),
        message("assistant", "It is noon."),
        message("user", "And?"),
    ]
    sent = messages(*history, dialect=OPENROUTER_DIALECT, model=CLAUDE)
    marked = [
        part["text"]
        for one in sent
        if isinstance(one.get("content"), list)
        for part in one["content"]
        if part.get("cache_control") == CACHED
    ]
    assert marked == ["Be kind.", "rain", "And?"]
    other = messages(*history, dialect=OPENROUTER_DIALECT, model="openai/gpt-5")
    assert all(isinstance(one.get("content", ""), str) for one in other)


def test_marked_requests_extend_each_other_except_for_their_marks() -> None:
    history = [
        message("user", "Hi"),
        message("assistant", call("a")),
        message("tool", result("a", "noon")),
        message("assistant", "It is noon."),
        message("user", "And?"),
    ]

    def without_marks(*said: PromptMessage) -> list[Fields]:
        sent = msgspec.json.encode(messages(*said, dialect=OPENROUTER_DIALECT, model=CLAUDE))
        return msgspec.json.decode(sent.replace(b',"cache_control":{"type":"ephemeral"}', b""))

    whole = without_marks(*history)
    for end in (1, 3):
        earlier = without_marks(*history[:end])
        assert whole[: len(earlier)] == earlier


def test_prompts_for_claude_carry_marks_at_vercel_too() -> None:
    """Its own automatic caching marks the system prompt only."""
    sent = messages(
        message("system", "A"), message("user", "Hi"), dialect=VERCEL_DIALECT, model=CLAUDE
    )
    assert all(one["content"][-1]["cache_control"] == CACHED for one in sent)
    options = parsed(VercelOptions, {"providerOptions": {"order": ["bedrock"]}})
    routed = body(request(model=CLAUDE), options, VERCEL_DIALECT)
    assert routed["providerOptions"] == {"gateway": {"order": ["bedrock"]}}


@pytest.mark.parametrize(
    ("dialect", "options", "key"),
    [
        (OPENAI_DIALECT, OpenAIOptions(), "chat-1"),
        (OPENAI_DIALECT, OpenAIOptions(prompt_cache_key="team"), "team"),
        (KIMI_DIALECT, CompatOptions(), "chat-1"),
        (COMPATIBLE_DIALECT, CompatOptions(), None),
    ],
)
def test_requests_of_a_chat_share_a_cache_key_where_the_server_takes_one(
    dialect: ChatDialect, options: ChatOptions, key: str | None
) -> None:
    sent = body(structs.replace(request(model="gpt-5"), cache_key="chat-1"), options, dialect)
    assert sent.get("prompt_cache_key") == key


# Google's compatible endpoint


@pytest.mark.covers("providers-13")
@pytest.mark.parametrize(
    ("model", "effort", "config"),
    [
        ("gemini-3-flash-preview", None, {"include_thoughts": True}),
        (
            "gemini-3-flash-preview",
            "medium",
            {"include_thoughts": True, "thinking_level": "medium"},
        ),
        ("gemini-3-pro-preview", "medium", {"include_thoughts": True, "thinking_level": "high"}),
        ("gemini-2.5-flash", "medium", {"include_thoughts": True, "thinking_budget": 8192}),
        ("gemini-2.5-flash", "none", {"include_thoughts": False, "thinking_budget": 0}),
    ],
)
def test_google_gets_its_own_thinking_field(model: str, effort: str | None, config: Fields) -> None:
    sent = body(request(model=model, reasoning_effort=effort), CompatOptions(), GOOGLE_DIALECT)
    assert sent["extra_body"] == {"google": {"thinking_config": config}}
    assert "reasoning_effort" not in sent


def test_a_model_that_cannot_think_gets_no_thinking_field() -> None:
    assert "extra_body" not in body(
        request(model="gemini-2.0-flash"), CompatOptions(), GOOGLE_DIALECT
    )


def test_a_call_is_sent_back_with_its_signature() -> None:
    model_request = [message("user", "Hi"), *recorded_answer("gemini")]
    sent = messages(*model_request, dialect=GOOGLE_DIALECT, model="gemini-3-flash-preview")
    signatures = [one.get("extra_content") for one in sent[1]["tool_calls"]]
    assert signatures == [{"google": {"thought_signature": "EjQKMgEMOdbH"}}, None]


@pytest.mark.covers("providers-13")
def test_unsigned_calls_of_the_current_turn_get_the_skip_signature() -> None:
    model_request = [
        message("user", "Hi"),
        message("assistant", call("a")),
        message("tool", result("a")),
        message("user", "And?"),
        message("assistant", call("b"), call("c")),
        message("tool", result("b"), result("c")),
    ]
    sent = messages(*model_request, dialect=GOOGLE_DIALECT, model="gemini-3-pro-preview")
    signed = [
        (one["id"], "extra_content" in one) for each in sent for one in each.get("tool_calls", ())
    ]
    assert signed == [("a", False), ("b", True), ("c", False)]
    for dialect, model in (
        (GOOGLE_DIALECT, "gemini-2.5-pro"),
        (COMPATIBLE_DIALECT, "gemini-3-pro-preview"),
    ):
        found = messages(*model_request, dialect=dialect, model=model)
        assert not any(
            "extra_content" in one for each in found for one in each.get("tool_calls", ())
        )


@pytest.mark.parametrize(
    ("kind", "base", "dialect"),
    [
        ("openai", "https://api.openai.com/v1", OPENAI_DIALECT),
        ("azure", "https://x.openai.azure.com/openai/v1", OPENAI_DIALECT),
        ("openrouter", "https://openrouter.ai/api/v1", OPENROUTER_DIALECT),
        ("vercel", "https://ai-gateway.vercel.sh/v1", VERCEL_DIALECT),
        ("openai-compat", "http://localhost:11434/v1", COMPATIBLE_DIALECT),
        (
            "openai-compat",
            "https://generativelanguage.googleapis.com/v1beta/openai",
            GOOGLE_DIALECT,
        ),
        ("openai-compat", "https://us-central1-aiplatform.googleapis.com/v1/p", GOOGLE_DIALECT),
        ("openai-compat", "https://googleapis.com.example.org/v1", COMPATIBLE_DIALECT),
        ("openai-compat", "https://api.deepseek.com", DEEPSEEK_API_DIALECT),
        ("openai-compat", "https://api.moonshot.ai/v1", KIMI_DIALECT),
        ("openai-compat", "https://api.z.ai/api/paas/v4", REPLAYING_DIALECT),
        ("openai-compat", "https://api.x.ai/v1", REPLAYING_DIALECT),
    ],
)
def test_the_dialect_follows_from_kind_and_address(
    kind: Any, base: str, dialect: ChatDialect
) -> None:
    assert choose_dialect(kind, base) == dialect


@pytest.mark.parametrize(
    ("base", "model", "dialect"),
    [
        ("https://gateway.example/v1", "deepseek-ai/DeepSeek-V4-Pro", DEEPSEEK_DIALECT),
        ("https://gateway.example/v1", "moonshotai/Kimi-K2.6", KIMI_DIALECT),
        ("https://gateway.example/v1", "glm-5", REPLAYING_DIALECT),
        ("https://gateway.example/v1", "qwen3:8b", COMPATIBLE_DIALECT),
        ("https://api.groq.com/openai/v1", "deepseek-r1-distill-llama-70b", COMPATIBLE_DIALECT),
    ],
)
def test_behind_a_gateway_the_dialect_follows_from_the_model(
    base: str, model: str, dialect: ChatDialect
) -> None:
    assert choose_dialect("openai-compat", base, model) == dialect


# Tools


@pytest.mark.covers("providers-11")
def test_a_named_tool_can_be_required_of_every_server() -> None:
    model_request = request(
        model="m",
        tools=(tool("show.time"), tool("read_file")),
        tool_choice=ForcedTool(name="show.time"),
    )
    sent = body(model_request)
    assert sent["tool_choice"] == {"type": "function", "function": {"name": "show_time"}}
    assert len(sent["tools"]) == 2
    sent = body(model_request, CompatOptions(), COMPATIBLE_DIALECT)
    assert sent["tool_choice"] == "required"
    assert [one["function"]["name"] for one in sent["tools"]] == ["show_time"]


def test_strict_is_not_sent_to_servers_that_do_not_know_it() -> None:
    model_request = request(model="m", tools=(tool("t"),), tool_choice="none")
    assert body(model_request, CompatOptions(), COMPATIBLE_DIALECT)["tools"] == [
        {
            "type": "function",
            "function": {"name": "t", "parameters": {"type": "object", "properties": {}}},
        }
    ]
    assert body(model_request)["tools"][0]["function"]["strict"] is False
    assert body(model_request)["tool_choice"] == "none"


def test_without_tools_the_tool_choice_is_absent() -> None:
    sent = body(request(model="m"), OpenAIOptions(parallel_tool_calls=True))
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & set(sent)


# Messages


def test_only_openai_gets_the_developer_role() -> None:
    model_request = request(
        message("system", "Be kind."), message("user", "Hi"), model="gpt-oss-20b"
    )
    assert body(model_request)["messages"][0]["role"] == "developer"
    assert (
        body(model_request, CompatOptions(), COMPATIBLE_DIALECT)["messages"][0]["role"] == "system"
    )


@pytest.mark.covers("providers-9")
def test_texts_are_joined_and_system_messages_merged() -> None:
    sent = messages(
        message("system", "One."),
        message("system", "Two."),
        message("user", "a", "b"),
        message("assistant", "c", "d"),
        message("user", "e"),
        message("user", "f"),
    )
    assert sent == [
        {"role": "system", "content": "One.\n\nTwo."},
        {"role": "user", "content": "a\n\nb"},
        {"role": "assistant", "content": "c\n\nd"},
        {"role": "user", "content": "e\n\nf"},
    ]


def test_an_answer_of_only_reasoning_is_not_sent() -> None:
    thought = message("assistant", PromptReasoning(text="hm"))
    assert messages(message("user", "a"), thought) == [{"role": "user", "content": "a"}]


def test_calls_and_results() -> None:
    sent = messages(
        message("user", "Hi"),
        message("assistant", "Let me see.", call("a", "show.time", b'{"zone": "UTC"}')),
        message("tool", result("a", "noon")),
    )
    function = {"name": "show_time", "arguments": '{"zone": "UTC"}'}
    calls = [{"id": "a", "type": "function", "function": function}]
    assert sent[1:] == [
        {"role": "assistant", "content": "Let me see.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "a", "content": "noon"},
    ]


def test_images_of_tools_follow_all_results() -> None:
    picture = PromptFile(media_type="image/png", data=PNG)
    sent = messages(
        message("user", "Hi"),
        message("assistant", call("a", "look"), call("b")),
        message("tool", result("a", "", "look", media=picture)),
        message("tool", result("b", "noon")),
        message("user", "So?"),
    )
    assert [one["role"] for one in sent] == ["user", "assistant", "tool", "tool", "user"]
    assert sent[2]["content"] == "[The output follows as an image.]"
    assert sent[4]["content"] == [
        {"type": "text", "text": "[Output of the call a of look:]"},
        {"type": "image_url", "image_url": {"url": PNG_URL}},
        {"type": "text", "text": "So?"},
    ]


def test_an_image_is_sent_if_the_result_is_the_last_message() -> None:
    picture = PromptFile(media_type="image/png", data=PNG)
    sent = messages(
        message("user", "Hi"),
        message("assistant", call("a")),
        message("tool", result("a", media=picture)),
    )
    assert sent[-1]["role"] == "user"


def test_a_document_is_sent_to_servers_that_take_it() -> None:
    model_request = message(
        "user", PromptFile(media_type="application/pdf", data=b"%PDF-1", name="a.pdf")
    )
    [sent] = messages(model_request, dialect=OPENAI_DIALECT)
    assert sent["content"] == [
        {
            "type": "file",
            "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0x"},
        }
    ]
    [sent] = messages(model_request)
    assert "is not shown" in sent["content"]


def test_an_unsupported_document_of_a_tool_is_described_in_the_result() -> None:
    film = PromptFile(media_type="video/mp4", data=b"x")
    sent = messages(
        message("user", "Hi"),
        message("assistant", call("a")),
        message("tool", result("a", "done", media=film)),
    )
    assert sent[-1]["role"] == "tool"
    assert sent[-1]["content"].startswith("done\n\n[A file (video/mp4) is not shown")


def test_long_ids_are_cut_alike_in_call_and_result() -> None:
    long = "x" * 90
    sent = messages(
        message("user", "Hi"), message("assistant", call(long)), message("tool", result(long))
    )
    assert sent[1]["tool_calls"][0]["id"] == sent[2]["tool_call_id"]
    assert len(sent[2]["tool_call_id"]) <= 40


# Reasoning


@pytest.mark.parametrize(
    ("name", "field"), [("deepseek", "reasoning_content"), ("ollama", "reasoning")]
)
def test_reasoning_of_a_tool_turn_is_sent_back_in_all_later_requests(name: str, field: str) -> None:
    spoken, *results = recorded_answer(name)
    thought = spoken.parts[0]
    assert isinstance(thought, PromptReasoning)
    first = messages(message("user", "Hi"), spoken, *results)
    assert first[1][field] == thought.text
    later = messages(message("user", "Hi"), spoken, *results, message("user", "And?"))
    assert later[: len(first)] == first


def thinking(field: str = "reasoning_content", text: str = "hm") -> PromptReasoning:
    packed = pack_metadata(ChatMetadata(origin=ORIGIN, field=field))
    return PromptReasoning(text=text, provider_metadata=packed)


TOOL_TURN_AND_PLAIN_TURN = (
    message("user", "Hi"),
    message("assistant", thinking(), call("a")),
    message("tool", result("a")),
    message("assistant", thinking(), "Noon."),
    message("user", "Thanks"),
    message("assistant", thinking(), "Welcome."),
    message("user", "And?"),
)


@pytest.mark.parametrize(
    ("dialect", "replayed_to"),
    [
        (COMPATIBLE_DIALECT, ["call", "Noon."]),
        (DEEPSEEK_DIALECT, ["call", "Noon."]),
        (KIMI_DIALECT, ["call", "Noon.", "Welcome."]),
        (REPLAYING_DIALECT, ["call", "Noon.", "Welcome."]),
        (msgspec.structs.replace(DEEPSEEK_DIALECT, reasoning_replay="none"), []),
    ],
)
def test_the_dialect_says_which_reasoning_is_sent_back(
    dialect: ChatDialect, replayed_to: list[str]
) -> None:
    sent = messages(*TOOL_TURN_AND_PLAIN_TURN, dialect=dialect)
    found = [one.get("content", "call") for one in sent if "reasoning_content" in one]
    assert found == replayed_to


@pytest.mark.parametrize(
    ("dialect", "missing"),
    [(COMPATIBLE_DIALECT, None), (DEEPSEEK_DIALECT, ""), (KIMI_DIALECT, " ")],
)
def test_a_call_without_reasoning_has_what_its_server_requires(
    dialect: ChatDialect, missing: str | None
) -> None:
    """The call may be another provider's, or the model did not think."""
    sent = messages(
        message("user", "Hi"),
        message("assistant", call("a")),
        message("tool", result("a")),
        dialect=dialect,
    )
    assert sent[1].get("reasoning_content") == missing


def test_reasoning_from_the_text_goes_back_into_the_text() -> None:
    sent = messages(
        message("user", "Hi"),
        message("assistant", thinking("<think>"), "\n\nLet me see.", call("a")),
        message("tool", result("a")),
        message("assistant", thinking("<think>", "ah"), call("b")),
        message("tool", result("b")),
    )
    assert sent[1]["content"] == "<think>hm</think>\n\nLet me see."
    assert sent[3]["content"] == "<think>ah</think>"
    assert "reasoning_content" not in sent[1]


def test_reasoning_before_a_plain_answer_is_left_out() -> None:
    sent = messages(message("user", "Hi"), *recorded_answer("vllm"))
    assert sent[1] == {"role": "assistant", "content": "Hello!"}


def test_reasoning_details_are_sent_back_to_their_gateway() -> None:
    sent = messages(
        message("user", "Hi"), *recorded_answer("openrouter"), dialect=OPENROUTER_DIALECT
    )
    expected = ["reasoning.text", "reasoning.encrypted"]
    assert [one["type"] for one in sent[1]["reasoning_details"]] == expected
    sent = messages(message("user", "Hi"), *recorded_answer("openrouter", origin="another"))
    assert not {"reasoning", "reasoning_details"} & set(sent[1])


def test_unreadable_metadata_is_ignored() -> None:
    for broken in (b"7", b"[]", b'{"openai_chat":{"origin":7}}', b"{", b'{"anthropic":{}}'):
        thought = PromptReasoning(text="hm", provider_metadata=Raw(broken))
        spoken = PromptText(text="Hello", provider_metadata=Raw(broken))
        used = call("a", metadata=Raw(broken))
        sent = messages(
            message("user", "Hi"),
            message("assistant", thought, spoken, used),
            message("tool", result("a")),
        )
        assert set(sent[1]) == {"role", "content", "tool_calls"}

"""What servers of Chat Completions are asked."""

from typing import Any, TypeVar

import msgspec
import pytest
from msgspec import Raw

from chatd.domain.model.protocol import (
    ForcedTool,
    ModelRequest,
    PromptFile,
    PromptMessage,
    PromptReasoning,
    PromptText,
    ToolSpec,
)
from chatd.providers.openai_chat.answer import Answer
from chatd.providers.openai_chat.decode import Decoder
from chatd.providers.openai_chat.dialect import (
    COMPATIBLE,
    GOOGLE,
    OPENAI,
    OPENROUTER,
    VERCEL,
    Dialect,
    dialect_of,
)
from chatd.providers.openai_chat.encode import encode
from chatd.providers.openai_chat.params import ChatOptions
from chatd.providers.openai_tools import names_of
from chatd.providers.options import parse
from chatd.providers.options_openai import (
    CompatOptions,
    OpenAIOptions,
    OpenRouterOptions,
    VercelOptions,
)
from chatd.providers.schema import ToolNames
from tests.support.providers.openai_chat import stream
from tests.support.providers.prompts import call, message, replayed, request, result
from tests.support.providers.reading import answer_of, read_whole

ORIGIN = "my server"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(8)
PNG_URL = "data:image/png;base64,iVBORw0KGgoAAAAAAAAAAA=="

Fields = dict[str, Any]


def body(
    asked: ModelRequest, options: ChatOptions | None = None, dialect: Dialect = OPENAI
) -> Fields:
    chosen = OpenAIOptions() if options is None else options
    return msgspec.json.decode(encode(asked, chosen, names_of(asked), dialect, ORIGIN))


def messages(
    *asked: PromptMessage, dialect: Dialect = COMPATIBLE, model: str = "m"
) -> list[Fields]:
    return body(request(*asked, model=model), CompatOptions(), dialect)["messages"]


def said(name: str, origin: str = ORIGIN) -> list[PromptMessage]:
    """A recorded answer as the next request carries it."""
    answer = Answer(origin, ToolNames([]), thoughts=name.startswith("gemini"))
    return replayed(answer_of(read_whole(lambda: Decoder(answer), stream(name))))


_T = TypeVar("_T", OpenRouterOptions, VercelOptions)


def parsed(block: type[_T], options: Fields) -> _T:
    return parse(block, Raw(msgspec.json.encode(options)))


def tool(name: str) -> ToolSpec:
    return ToolSpec(name=name, description="", input_schema=Raw(b'{"type":"object"}'))


# Parameters


def test_a_plain_question() -> None:
    asked = request(message("system", "Be kind."), message("user", "Hi"), model="gpt-4.1")
    assert body(asked) == {
        "model": "gpt-4.1",
        "messages": [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "Hi"},
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


SAMPLING = {
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 3,
    "presence_penalty": 1.0,
    "frequency_penalty": 0.5,
}


@pytest.mark.covers("providers-9")
@pytest.mark.parametrize("model", ["o1", "o3-mini", "o4-mini", "gpt-5", "openai/gpt-oss-20b"])
def test_a_model_that_reasons_is_told_a_limit_by_another_name_and_no_temperature(
    model: str,
) -> None:
    sent = body(request(model=model, max_output_tokens=9, reasoning_effort="high", **SAMPLING))
    assert sent["max_completion_tokens"] == 9
    assert sent["reasoning_effort"] == "high"
    assert not {"max_tokens", *SAMPLING} & set(sent)


def test_a_model_that_does_not_is_told_all_but_what_its_server_does_not_know() -> None:
    asked = request(model="gpt-4o", max_output_tokens=9, reasoning_effort="high", **SAMPLING)
    sent = body(asked)
    assert sent["max_tokens"] == 9
    assert not {"top_k", "reasoning_effort", "max_completion_tokens"} & set(sent)
    local = request(model="llama", max_output_tokens=9, reasoning_effort="low", **SAMPLING)
    sent = body(local, CompatOptions(), COMPATIBLE)
    assert {key: sent[key] for key in SAMPLING} == SAMPLING
    assert (sent["max_tokens"], sent["reasoning_effort"]) == (9, "low")


def test_options_go_where_the_api_wants_them() -> None:
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


def test_models_that_search_are_told_how_much() -> None:
    options = OpenAIOptions(web_search_enabled=True, search_context_size="high")
    sent = body(request(model="gpt-4o-search-preview"), options)
    assert sent["web_search_options"] == {"search_context_size": "high"}
    assert "web_search_options" not in body(request(model="gpt-3.5-turbo"), options)


def test_a_structured_answer() -> None:
    schema = {"type": "object", "properties": {"title": {"type": "string"}}}
    asked = request(model="m", output_schema=Raw(msgspec.json.encode(schema)))
    assert body(asked, CompatOptions(), COMPATIBLE)["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": schema, "strict": False},
    }
    old = OpenAIOptions(structured_outputs=False)
    assert body(asked, old)["response_format"] == {"type": "json_object"}


# Gateways


def test_openrouter_reasons_and_routes_in_its_own_words() -> None:
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
    asked = request(model="anthropic/claude", reasoning_effort="max", tools=(tool("t"),), top_k=4)
    sent = body(asked, options, OPENROUTER)
    assert sent["reasoning"] == {"exclude": True, "effort": "xhigh"}
    assert sent["provider"] == {"order": ["a"], "allow_fallbacks": False, "sort": "price"}
    assert sent["usage"] == {"include": True}
    assert sent["transforms"] == ["middle-out"]
    assert (sent["parallel_tool_calls"], sent["user"], sent["top_k"]) == (False, "u", 4)
    # What an administrator adds takes the place of nothing that we need.
    assert sent["stream"] is True
    assert sent["messages"]
    assert "reasoning_effort" not in sent


def test_a_configured_number_of_tokens_counts_more_than_an_effort() -> None:
    options = parsed(VercelOptions, {"reasoning": {"max_tokens": 2000}})
    sent = body(request(model="anthropic/claude", reasoning_effort="high"), options, VERCEL)
    assert sent["reasoning"] == {"max_tokens": 2000}


def test_vercel_routes_in_its_own_words() -> None:
    options = parsed(
        VercelOptions,
        {"providerOptions": {"order": ["vertex"], "models": ["a/b"]}, "top_logprobs": 2},
    )
    sent = body(request(model="google/gemini-3-flash-preview"), options, VERCEL)
    assert sent["providerOptions"] == {"gateway": {"order": ["vertex"], "models": ["a/b"]}}
    assert sent["top_logprobs"] == 2
    # Google's own words are for Google's own address.
    assert "extra_body" not in sent


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
def test_google_is_told_how_to_think_in_its_own_words(
    model: str, effort: str | None, config: Fields
) -> None:
    sent = body(request(model=model, reasoning_effort=effort), CompatOptions(), GOOGLE)
    assert sent["extra_body"] == {"google": {"thinking_config": config}}
    assert "reasoning_effort" not in sent


def test_a_model_that_cannot_think_is_told_nothing() -> None:
    assert "extra_body" not in body(request(model="gemini-2.0-flash"), CompatOptions(), GOOGLE)


def test_a_call_goes_back_with_its_signature() -> None:
    asked = [message("user", "Hi"), *said("gemini")]
    sent = messages(*asked, dialect=GOOGLE, model="gemini-3-flash-preview")
    signatures = [one.get("extra_content") for one in sent[1]["tool_calls"]]
    assert signatures == [{"google": {"thought_signature": "EjQKMgEMOdbH"}}, None]


@pytest.mark.covers("providers-13")
def test_calls_of_the_current_turn_that_nobody_signed_get_googles_word_for_that() -> None:
    asked = [
        message("user", "Hi"),
        message("assistant", call("a")),
        message("tool", result("a")),
        message("user", "And?"),
        message("assistant", call("b"), call("c")),
        message("tool", result("b"), result("c")),
    ]
    sent = messages(*asked, dialect=GOOGLE, model="gemini-3-pro-preview")
    signed = [
        (one["id"], "extra_content" in one) for each in sent for one in each.get("tool_calls", ())
    ]
    assert signed == [("a", False), ("b", True), ("c", False)]
    for dialect, model in ((GOOGLE, "gemini-2.5-pro"), (COMPATIBLE, "gemini-3-pro-preview")):
        found = messages(*asked, dialect=dialect, model=model)
        assert not any(
            "extra_content" in one for each in found for one in each.get("tool_calls", ())
        )


@pytest.mark.parametrize(
    ("kind", "base", "dialect"),
    [
        ("openai", "https://api.openai.com/v1", OPENAI),
        ("azure", "https://x.openai.azure.com/openai/v1", OPENAI),
        ("openrouter", "https://openrouter.ai/api/v1", OPENROUTER),
        ("vercel", "https://ai-gateway.vercel.sh/v1", VERCEL),
        ("openai-compat", "http://localhost:11434/v1", COMPATIBLE),
        ("openai-compat", "https://generativelanguage.googleapis.com/v1beta/openai", GOOGLE),
        ("openai-compat", "https://us-central1-aiplatform.googleapis.com/v1/p", GOOGLE),
        ("openai-compat", "https://googleapis.com.example.org/v1", COMPATIBLE),
    ],
)
def test_who_is_spoken_to_is_known_by_kind_and_address(
    kind: Any, base: str, dialect: Dialect
) -> None:
    assert dialect_of(kind, base) == dialect


# Tools


@pytest.mark.covers("providers-11")
def test_a_tool_may_be_demanded_even_of_servers_that_know_no_names() -> None:
    asked = request(
        model="m",
        tools=(tool("show.time"), tool("read_file")),
        tool_choice=ForcedTool(name="show.time"),
    )
    sent = body(asked)
    assert sent["tool_choice"] == {"type": "function", "function": {"name": "show_time"}}
    assert len(sent["tools"]) == 2
    sent = body(asked, CompatOptions(), COMPATIBLE)
    assert sent["tool_choice"] == "required"
    assert [one["function"]["name"] for one in sent["tools"]] == ["show_time"]


def test_servers_that_do_not_know_strictness_do_not_hear_of_it() -> None:
    asked = request(model="m", tools=(tool("t"),), tool_choice="none")
    assert body(asked, CompatOptions(), COMPATIBLE)["tools"] == [
        {
            "type": "function",
            "function": {"name": "t", "parameters": {"type": "object", "properties": {}}},
        }
    ]
    assert body(asked)["tools"][0]["function"]["strict"] is False
    assert body(asked)["tool_choice"] == "none"


def test_without_tools_there_is_no_choice() -> None:
    sent = body(request(model="m"), OpenAIOptions(parallel_tool_calls=True))
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & set(sent)


# Messages


def test_a_model_that_reasons_hears_a_developer_at_openai_only() -> None:
    asked = request(message("system", "Be kind."), message("user", "Hi"), model="gpt-oss-20b")
    assert body(asked)["messages"][0]["role"] == "developer"
    assert body(asked, CompatOptions(), COMPATIBLE)["messages"][0]["role"] == "system"


@pytest.mark.covers("providers-9")
def test_texts_are_joined_and_instructions_are_one() -> None:
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


def test_an_answer_of_nothing_but_thoughts_is_not_sent() -> None:
    thought = message("assistant", PromptReasoning(text="hm"))
    assert messages(message("user", "a"), thought) == [{"role": "user", "content": "a"}]


def test_calls_and_results() -> None:
    sent = messages(
        message("user", "Hi"),
        message("assistant", "Let me see.", call("a", "show.time", b'{"zone": "UTC"}')),
        message("tool", result("a", "noon")),
    )
    assert sent[1:] == [
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [
                {
                    "id": "a",
                    "type": "function",
                    "function": {"name": "show_time", "arguments": '{"zone": "UTC"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "noon"},
    ]


def test_pictures_that_tools_made_follow_all_results() -> None:
    picture = PromptFile(media_type="image/png", data=PNG)
    sent = messages(
        message("user", "Hi"),
        message("assistant", call("a", "look"), call("b")),
        message("tool", result("a", "", "look", media=picture)),
        message("tool", result("b", "noon")),
        message("user", "So?"),
    )
    assert [one["role"] for one in sent] == ["user", "assistant", "tool", "tool", "user"]
    assert sent[2]["content"] == "[The output follows as a picture.]"
    assert sent[4]["content"] == [
        {"type": "text", "text": "[What the call a of look gave:]"},
        {"type": "image_url", "image_url": {"url": PNG_URL}},
        {"type": "text", "text": "So?"},
    ]


def test_a_picture_is_shown_also_if_the_result_is_the_last_word() -> None:
    picture = PromptFile(media_type="image/png", data=PNG)
    sent = messages(
        message("user", "Hi"),
        message("assistant", call("a")),
        message("tool", result("a", media=picture)),
    )
    assert sent[-1]["role"] == "user"


def test_a_document_goes_to_whom_it_can_be_sent() -> None:
    asked = message("user", PromptFile(media_type="application/pdf", data=b"%PDF-1", name="a.pdf"))
    [sent] = messages(asked, dialect=OPENAI)
    assert sent["content"] == [
        {
            "type": "file",
            "file": {
                "filename": "a.pdf",
                "file_data": "data:application/pdf;base64,JVBERi0x",
            },
        }
    ]
    [sent] = messages(asked)
    assert "is not shown" in sent["content"]


def test_a_document_that_a_tool_made_and_cannot_be_sent_is_told_of_in_the_result() -> None:
    film = PromptFile(media_type="video/mp4", data=b"x")
    sent = messages(
        message("user", "Hi"),
        message("assistant", call("a")),
        message("tool", result("a", "done", media=film)),
    )
    assert sent[-1]["role"] == "tool"
    assert sent[-1]["content"].startswith("done\n\n[A file (video/mp4) is not shown")


def test_long_ids_of_others_are_cut_alike_in_call_and_result() -> None:
    long = "x" * 90
    sent = messages(
        message("user", "Hi"), message("assistant", call(long)), message("tool", result(long))
    )
    assert sent[1]["tool_calls"][0]["id"] == sent[2]["tool_call_id"]
    assert len(sent[2]["tool_call_id"]) <= 40


# Thoughts


@pytest.mark.parametrize(
    ("name", "field"), [("deepseek", "reasoning_content"), ("ollama", "reasoning")]
)
def test_between_calls_a_server_gets_its_thoughts_back_and_later_not(name: str, field: str) -> None:
    spoken, *results = said(name)
    thought = spoken.parts[0]
    assert isinstance(thought, PromptReasoning)
    sent = messages(message("user", "Hi"), spoken, *results)
    assert sent[1][field] == thought.text
    sent = messages(message("user", "Hi"), spoken, *results, message("user", "And?"))
    assert field not in sent[1]


def test_thoughts_before_a_plain_answer_stay_here() -> None:
    sent = messages(message("user", "Hi"), *said("vllm"))
    assert sent[1] == {"role": "assistant", "content": "Hello!"}


def test_sealed_thoughts_go_back_to_the_gateway_they_came_from() -> None:
    sent = messages(message("user", "Hi"), *said("openrouter"), dialect=OPENROUTER)
    assert [one["type"] for one in sent[1]["reasoning_details"]] == [
        "reasoning.text",
        "reasoning.encrypted",
    ]
    sent = messages(message("user", "Hi"), *said("openrouter", origin="another"))
    assert not {"reasoning", "reasoning_details"} & set(sent[1])


def test_metadata_that_cannot_be_read_is_nobodys() -> None:
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

"""Encoding requests of the Messages API."""

from typing import TypeGuard

import msgspec
import pytest
from msgspec import UNSET, Raw, structs

from chatd.domain.errors import InvalidInput
from chatd.domain.model.protocol import (
    ComputerTool,
    ForcedTool,
    ModelRequest,
    PromptFile,
    PromptMessage,
    PromptPart,
    PromptReasoning,
    PromptText,
    ToolSpec,
)
from chatd.domain.text import Json
from chatd.providers.anthropic.anthropic_decoder import AnthropicDecoder
from chatd.providers.anthropic.anthropic_request import encode_request
from chatd.providers.anthropic.anthropic_wire import AnthropicMetadata, pack_metadata
from tests.support.providers.anthropic import stream
from tests.support.providers.anthropic_requests import (
    CLICK,
    JPEG,
    MODELS,
    PDF,
    PNG,
    SCREEN,
    SIGNED,
    TOOLS,
    VARIANTS,
    requests,
    tool_round,
)
from tests.support.providers.anthropic_rules import RULES, blocks, is_object, messages, objects
from tests.support.providers.prompts import call, message, replayed, request, result
from tests.support.providers.stream_reader import answer_of, read_whole

BUDGETED = "claude-sonnet-4-5"
ADAPTIVE = "claude-opus-4-6"
NEWEST = "claude-opus-5-5"

Body = dict[str, object]


def encoded(asked: ModelRequest) -> Body:
    return msgspec.json.decode(encode_request(asked).body, type=Body)


def body(*said: PromptMessage, model: str = BUDGETED, **more: object) -> Body:
    return encoded(request(*said, model=model, **more))


def contents(body: Body) -> list[list[Body]]:
    """The messages without cache marks."""
    return [[unmarked(block) for block in blocks(m)] for m in messages(body)]


def unmarked(block: Body) -> Body:
    return {key: value for key, value in block.items() if key != "cache_control"}


def is_marked(block: Body) -> bool:
    return block.get("cache_control") == {"type": "ephemeral"}


def is_list(value: object) -> TypeGuard[list[object]]:
    return isinstance(value, list)


# Acceptance


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_model_accepts_every_request(variant: str) -> None:
    for model in MODELS:
        for name, asked in requests(model).items():
            made = encode_request(structs.replace(asked, **VARIANTS[variant]))
            wire = msgspec.json.decode(made.body, type=Body)
            for rule in RULES:
                assert rule(wire, set(made.betas)) is None, (model, name)


# Order


@pytest.mark.covers("providers-1")
def test_leading_system_messages_are_separate_and_later_ones_are_left_out() -> None:
    wire = body(
        message("system", "A", "  "),
        message("system", "B"),
        message("user", "Hi"),
        message("system", "late"),
    )
    expected = [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]
    assert [unmarked(block) for block in objects(wire["system"])] == expected
    assert contents(wire) == [[{"type": "text", "text": "Hi"}]]


def test_without_a_system_message_the_field_is_absent() -> None:
    assert "system" not in body(message("system", " "), message("user", "Hi"))


@pytest.mark.covers("providers-1")
def test_consecutive_user_messages_and_results_are_merged_results_first() -> None:
    wire = body(
        message("user", "Hi"),
        message("assistant", call("a"), call("b")),
        message("tool", result("b", "second")),
        message("user", "Hurry!"),
        message("tool", result("a", "first")),
        message("user", "Now!"),
    )
    assert [m["role"] for m in messages(wire)] == ["user", "assistant", "user"]
    first, second = ([{"type": "text", "text": text}] for text in ("first", "second"))
    assert contents(wire)[-1] == [
        {"type": "tool_result", "tool_use_id": "b", "content": second},
        {"type": "tool_result", "tool_use_id": "a", "content": first},
        {"type": "text", "text": "Hurry!"},
        {"type": "text", "text": "Now!"},
    ]


@pytest.mark.covers("providers-1")
def test_empty_messages_are_dropped_and_their_neighbours_merged() -> None:
    wire = body(
        message("user", "A"),
        message("assistant", SIGNED, PromptText(text=" \n")),
        message("user", "  "),
        message("user", "B"),
    )
    assert contents(wire) == [[{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]]


@pytest.mark.covers("providers-2")
def test_a_call_with_invalid_input_is_sent_with_an_empty_object() -> None:
    inputs = [b"{}", b'{"a": 1}', b"[1]", b"7", b"null", b'{"cut', b""]
    said = [message("assistant", *(call(f"c{i}", args=data) for i, data in enumerate(inputs)))]
    uses = contents(body(message("user", "Hi"), *said, message("user", "B")))[1]
    assert [use["input"] for use in uses] == [{}, {"a": 1}, {}, {}, {}, {}, {}]


def test_invalid_ids_and_names_are_changed_consistently() -> None:
    tools = [ToolSpec(name="a.b", description="", input_schema=Raw(b"{}"))]
    wire = body(
        message("user", "Hi"),
        message("assistant", call("call:1/x", "a.b")),
        message("tool", result("call:1/x", name="a.b")),
        tools=tuple(tools),
    )
    assert objects(wire["tools"])[0]["name"] == "a_b"
    expected = ["call_1_x", "call_1_x"]
    assert [(b.get("id") or b["tool_use_id"]) for m in contents(wire)[1:] for b in m] == expected
    assert contents(wire)[1][0]["name"] == "a_b"


# Thinking in history


@pytest.mark.covers("providers-2")
def test_thinking_is_sent_back_unchanged() -> None:
    text = ' spaced \n"quoted" \\ \u2028 世界 👋 '
    thought = PromptReasoning(
        text=text, provider_metadata=pack_metadata(AnthropicMetadata(signature="Eq+/=="))
    )
    said = body(message("user", "A"), message("assistant", thought, "B"), message("user", "C"))
    assert contents(said)[1][0] == {"type": "thinking", "thinking": text, "signature": "Eq+/=="}


@pytest.mark.parametrize(
    "name", ["thinking_and_tools", "redacted_thinking", "web_search", "web_search_error"]
)
def test_an_answer_is_sent_back_unchanged(name: str) -> None:
    answer = answer_of(read_whole(AnthropicDecoder, stream(name)))
    wire = body(message("user", "Hi"), *replayed(answer), message("user", "Go on"), tools=TOOLS)
    assert contents(wire)[1] == as_sent(name)


def as_sent(name: str) -> list[Body]:
    """The blocks of a recorded stream, assembled without the decoder."""
    built: list[Body] = []
    for line in stream(name).splitlines():
        if not line.startswith(b"data: "):
            continue
        event = msgspec.json.decode(line[6:], type=Body)
        block, delta = event.get("content_block"), event.get("delta")
        if event["type"] == "content_block_start" and is_object(block):
            built.append({key: value for key, value in block.items() if value != []})
        elif event["type"] == "content_block_delta" and is_object(delta):
            _add(built[-1], delta)
    for block in built:
        if isinstance(block.get("input"), str):
            block["input"] = msgspec.json.decode(str(block["input"]) or "{}")
    return built


def _add(block: Body, delta: Body) -> None:
    match delta["type"]:
        case "text_delta":
            block["text"] = f"{block['text']}{delta['text']}"
        case "thinking_delta":
            block["thinking"] = f"{block['thinking']}{delta['thinking']}"
        case "signature_delta":
            block["signature"] = delta["signature"]
        case "citations_delta":
            known = block.get("citations")
            block["citations"] = [*(known if is_list(known) else []), delta["citation"]]
        case _:
            before = block["input"] if isinstance(block["input"], str) else ""
            block["input"] = f"{before}{delta['partial_json']}"


@pytest.mark.covers("providers-2")
def test_unsigned_thinking_and_that_of_other_providers_is_left_out() -> None:
    unsigned = PromptReasoning(text="Hm")
    foreign = PromptReasoning(text="Hm", provider_metadata=Raw(b'{"google":{"signature":"x"}}'))
    broken = PromptReasoning(text="Hm", provider_metadata=Raw(b"nonsense"))
    said = message("assistant", unsigned, foreign, broken, "B")
    assert contents(body(message("user", "A"), said, message("user", "C")))[1] == [
        {"type": "text", "text": "B"}
    ]


def test_thinking_is_left_out_by_option_or_when_thinking_is_off() -> None:
    said = tool_round(SIGNED)
    kinds = [
        [
            block["type"]
            for block in contents(encoded(request(*said, model=BUDGETED, **VARIANTS[variant])))[1]
        ]
        for variant in ("plain", "forgetful", "no thinking")
    ]
    assert kinds == [["thinking", "tool_use", "tool_use"], *[["tool_use", "tool_use"]] * 2]


# Provider-executed tools


def search(
    call_id: str, *, metadata: bool = True, raw: bool = True
) -> tuple[PromptPart, PromptPart]:
    def stored(block: str) -> Json:
        return pack_metadata(AnthropicMetadata(block=block)) if metadata else UNSET

    asked = call(call_id, "web_search", b'{"query":"x"}', stored("server_tool_use"))
    found = result(
        *(call_id, "", "web_search"),
        provider_executed=True,
        raw=Raw(b"[]") if raw else UNSET,
        provider_metadata=stored("web_search_tool_result"),
    )
    return structs.replace(asked, provider_executed=True), found


def test_incomplete_searches_and_those_of_other_providers_are_left_out() -> None:
    whole = search("srvtoolu_1")
    said = message(
        "assistant",
        *whole,
        search("srvtoolu_2")[0],
        search("srvtoolu_3")[1],
        *reversed(search("srvtoolu_4")),
        *search("ws_5", metadata=False),
        *search("srvtoolu_6", raw=False),
        search("srvtoolu_7", metadata=False)[0],
        search("srvtoolu_7")[1],
        "Found.",
    )
    used = {"id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}}
    assert contents(body(message("user", "A"), said, message("user", "C")))[1] == [
        {"type": "server_tool_use", **used},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
        {"type": "text", "text": "Found."},
    ]


def test_a_search_in_a_user_message_is_left_out() -> None:
    wire = body(message("user", "A", *search("srvtoolu_1")), message("tool", *search("s2")))
    assert contents(wire) == [[{"type": "text", "text": "A"}]]


def test_web_search_is_offered_with_its_domains() -> None:
    options = Raw(b'{"web_search_enabled":true,"blocked_domains":["a.org","b.org"]}')
    assert objects(body(tools=(), options=options)["tools"]) == [
        {"type": "web_search_20250305", "name": "web_search", "blocked_domains": ["a.org", "b.org"]}
    ]


def test_an_output_schema_disables_web_search() -> None:
    options = Raw(b'{"web_search_enabled":true}')
    assert "tools" not in body(options=options, output_schema=Raw(b"{}"))


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("web_search", {"options": Raw(b'{"web_search_enabled":true}')}),
        ("computer", {"computer": ComputerTool(width_px=800, height_px=600)}),
    ],
)
def test_a_tool_named_like_a_provider_tool_is_renamed(name: str, more: dict[str, object]) -> None:
    tool = ToolSpec(name=name, description="", input_schema=Raw(b"{}"))
    made = encode_request(msgspec.structs.replace(request(model=BUDGETED, tools=(tool,)), **more))
    names = [t["name"] for t in objects(msgspec.json.decode(made.body, type=Body)["tools"])]
    assert names[0] != name
    assert names[1] == name
    assert made.names.from_wire(str(names[0])) == name
    alone = body(tools=(tool,))
    assert [t["name"] for t in objects(alone["tools"])] == [name]


# Files


@pytest.mark.covers("providers-5")
def test_files_are_encoded_by_their_type() -> None:
    files = (
        PromptFile(media_type="image/png", data=JPEG),
        PromptFile(media_type="application/pdf", data=PDF, name="Bill_№1 (új) [v2].pdf"),
        PromptFile(media_type="application/json", data=b'{"a":1}', name="../a.json"),
        PromptFile(media_type="text/plain", data=b"plain"),
    )
    (shown,) = contents(body(message("user", *files)))
    image = {"type": "base64", "media_type": "image/jpeg", "data": "/9j/4C1waWN0dXJl"}
    paper = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0xLjcgLi4u"}
    json = {"type": "text", "data": '{"a":1}', "media_type": "text/plain"}
    plain = {"type": "text", "data": "plain", "media_type": "text/plain"}
    assert shown == [
        {"type": "image", "source": image},
        {"type": "document", "source": paper, "title": "Bill 1 ( j) [v2] pdf"},
        {"type": "document", "source": json, "title": "a json"},
        {"type": "document", "source": plain},
    ]


@pytest.mark.parametrize(
    ("file", "says"),
    [
        (PromptFile(media_type="video/mp4", data=b"x", name="a.mp4"), "a.mp4 (video/mp4)"),
        (PromptFile(media_type="image/png", data=PNG * 500_000, name="big"), "larger than 5 MiB"),
        (PromptFile(media_type="image/png", data=b"", name="none.png"), "none.png"),
        (PromptFile(media_type="text/plain", data=b" \n", name="blank.txt"), "blank.txt"),
    ],
)
def test_an_unsupported_file_is_described(file: PromptFile, says: str) -> None:
    ((said,),) = contents(body(message("user", file)))
    assert said["type"] == "text"
    assert says in str(said["text"])


def test_a_screenshot_is_sent_in_the_result() -> None:
    (_, _, (shown,)) = contents(
        body(message("user", "A"), message("assistant", CLICK), message("tool", SCREEN))
    )
    assert [part["type"] for part in objects(shown["content"])] == ["image"]


def test_an_error_result_has_text_and_no_media() -> None:
    wire = encoded(requests(BUDGETED)["failed tools"])
    said = [objects(block["content"]) for block in contents(wire)[-1]]
    expected = [["The tool failed without a message."], ["no"]]
    assert [[part["text"] for part in parts] for parts in said] == expected


# Tools


def test_tools_are_sorted_with_normalized_schemas() -> None:
    sent = objects(body(tools=TOOLS)["tools"])
    assert [tool["name"] for tool in sent] == ["mcp_example_do_it", "now", "write_file"]
    assert sent[1]["input_schema"] == {"type": "object", "properties": {}}
    lines: Body = {"anyOf": [{"type": "array", "items": {}}, {"type": "null"}]}
    properties: Body = {"path": {"type": "string"}, "lines": lines}
    expected = {"type": "object", "properties": properties, "required": ["path"]}
    assert sent[2]["input_schema"] == expected


@pytest.mark.parametrize(
    ("choice", "single", "sent"),
    [
        ("auto", "null", None),
        ("auto", "true", {"type": "auto", "disable_parallel_tool_use": True}),
        ("auto", "false", {"type": "auto", "disable_parallel_tool_use": False}),
        ("none", "true", {"type": "none"}),
        ("required", "null", {"type": "any"}),
        ("required", "true", {"type": "any", "disable_parallel_tool_use": True}),
        (
            ForcedTool(name="mcp.example/do it"),
            "null",
            {"type": "tool", "name": "mcp_example_do_it"},
        ),
    ],
)
def test_the_tool_choice_is_encoded(choice: object, single: str, sent: Body | None) -> None:
    options = Raw(b'{"disable_parallel_tool_use":%b}' % single.encode())
    wire = body(tools=TOOLS, tool_choice=choice, options=options)
    assert wire.get("tool_choice") == sent


def test_without_tools_the_tool_choice_is_absent() -> None:
    assert "tool_choice" not in body(tool_choice="none")
    assert "tool_choice" not in body(tool_choice="required")


def test_a_model_that_cannot_be_forced_gets_no_forced_choice() -> None:
    wire = body(model=NEWEST, tools=TOOLS, tool_choice="required")
    assert "tool_choice" not in wire


@pytest.mark.parametrize(
    ("model", "tool", "beta"),
    [
        ("claude-3-5-sonnet-20241022", "computer_20241022", "computer-use-2024-10-22"),
        ("claude-3-7-sonnet-20250219", "computer_20250124", "computer-use-2025-01-24"),
        ("claude-sonnet-4-5", "computer_20250124", "computer-use-2025-01-24"),
        ("claude-haiku-4-5-20251001", "computer_20250124", "computer-use-2025-01-24"),
        ("claude-opus-4-5-20251101", "computer_20251124", "computer-use-2025-11-24"),
        ("claude-sonnet-4-6", "computer_20251124", "computer-use-2025-11-24"),
        ("claude-opus-5", "computer_20251124", "computer-use-2025-11-24"),
        ("something-else", "computer_20251124", "computer-use-2025-11-24"),
    ],
)
def test_the_computer_tool_has_the_version_of_the_model(model: str, tool: str, beta: str) -> None:
    made = encode_request(request(model=model, computer=ComputerTool(width_px=1024, height_px=768)))
    wire = msgspec.json.decode(made.body, type=Body)
    zoom = {"enable_zoom": True} if tool == "computer_20251124" else {}
    size = {"display_width_px": 1024, "display_height_px": 768}
    assert objects(wire["tools"]) == [{"type": tool, "name": "computer", **size, **zoom}]
    assert made.betas == (beta,)


def test_the_newest_models_get_the_computer_toolset() -> None:
    asked = request(
        message("user", "A"),
        message("assistant", CLICK, call("toolu_x", "now", b'{"action":"zoom"}')),
        message("tool", SCREEN),
        message("tool", result("toolu_x")),
        model=NEWEST,
        computer=ComputerTool(width_px=1024, height_px=768),
    )
    made = encode_request(asked)
    wire = msgspec.json.decode(made.body, type=Body)
    assert made.betas == ("thinking-binding-controls-2026-08-01",)
    assert objects(wire["tools"]) == [{"type": "computer_toolset_20260801"}]
    (click, now), (screen, time) = contents(wire)[1:]
    expected = ("left_click", {"text": "a"}, "computer")
    assert (click["name"], click["input"], click["toolset_name"]) == expected
    assert (now["name"], now["input"]) == ("now", {"action": "zoom"})
    assert "toolset_name" not in now
    assert screen["toolset_name"] == "computer"
    assert "toolset_name" not in time


# Thinking


@pytest.mark.covers("providers-14")
@pytest.mark.parametrize(
    ("model", "more", "thinking", "effort"),
    [
        ("claude-3-5-sonnet-20241022", {"reasoning_effort": "high"}, None, None),
        (BUDGETED, {}, None, None),
        (BUDGETED, {"reasoning_effort": "high", "max_output_tokens": 10_000}, 8_000, None),
        (BUDGETED, {"reasoning_effort": "minimal", "max_output_tokens": 2_000}, 1024, None),
        (BUDGETED, {"reasoning_effort": "max", "max_output_tokens": 1_050}, 1024, None),
        (BUDGETED, {"reasoning_effort": "high", "max_output_tokens": 1_024}, None, None),
        (BUDGETED, {"options": Raw(b'{"thinking":{"budget_tokens":4096}}')}, 4096, None),
        (
            BUDGETED,
            {"options": Raw(b'{"thinking":{"budget_tokens":4096}}'), "max_output_tokens": 3000},
            *(2999, None),
        ),
        (
            BUDGETED,
            {"options": Raw(b'{"thinking":{"budget_tokens":4096}}'), "max_output_tokens": 1025},
            *(1024, None),
        ),
        (
            BUDGETED,
            {"options": Raw(b'{"thinking":{"budget_tokens":4096}}'), "max_output_tokens": 1024},
            *(None, None),
        ),
        (BUDGETED, {"options": Raw(b'{"effort":"low"}')}, 6_400, None),
        (
            BUDGETED,
            {"reasoning_effort": "none", "options": VARIANTS["budget"]["options"]},
            None,
            None,
        ),
        (ADAPTIVE, {}, None, None),
        (ADAPTIVE, {"reasoning_effort": "medium"}, "adaptive", "medium"),
        (ADAPTIVE, {"reasoning_effort": "xhigh"}, "adaptive", "high"),
        (ADAPTIVE, {"reasoning_effort": "minimal"}, "adaptive", "low"),
        (ADAPTIVE, {"options": Raw(b'{"thinking":{"budget_tokens":4096}}')}, 4096, None),
        ("claude-opus-4-7", {}, None, None),
        ("claude-opus-4-7", {"reasoning_effort": "xhigh"}, "adaptive", "xhigh"),
        ("claude-opus-4-7", {"reasoning_effort": "none"}, None, None),
        ("claude-opus-4-7", {"options": VARIANTS["budget"]["options"]}, "adaptive", None),
        ("claude-opus-5", {}, "adaptive", None),
        ("claude-opus-5", {"reasoning_effort": "none"}, "disabled", None),
        ("claude-sonnet-5-5", {"reasoning_effort": "none"}, "between_tools", None),
        ("claude-fable-5", {"reasoning_effort": "none"}, None, "low"),
        (NEWEST, {"reasoning_effort": "none"}, "adaptive", "low"),
        ("us.anthropic.claude-opus-4-6-v1", {"reasoning_effort": "max"}, "adaptive", "max"),
        ("some-gateway-model", {}, None, None),
        ("some-gateway-model", {"reasoning_effort": "low"}, "adaptive", "low"),
        ("claude-2.1", {"reasoning_effort": "low"}, None, None),
    ],
)
def test_thinking_is_configured_as_the_model_requires(
    model: str, more: dict[str, object], thinking: str | int | None, effort: str | None
) -> None:
    wire = body(model=model, **more)
    config, output = wire.get("thinking"), wire.get("output_config")
    if isinstance(thinking, int):
        assert config == {"type": "enabled", "budget_tokens": thinking}
    else:
        assert (config["type"] if is_object(config) else None) == thinking
    assert (output["effort"] if is_object(output) else None) == effort


def test_thinking_is_displayed_unless_an_option_omits_it() -> None:
    shown = body(model="claude-opus-4-7", reasoning_effort="low")["thinking"]
    hidden = body(
        model="claude-opus-4-7",
        reasoning_effort="low",
        options=Raw(b'{"thinking_display":"omitted"}'),
    )["thinking"]
    assert shown == {"type": "adaptive", "display": "summarized"}
    assert hidden == {"type": "adaptive", "display": "omitted"}
    assert body(model=ADAPTIVE, reasoning_effort="low")["thinking"] == {"type": "adaptive"}


@pytest.mark.covers("providers-5")
@pytest.mark.parametrize("model", [BUDGETED, ADAPTIVE])
def test_a_thinking_model_gets_no_temperature(model: str) -> None:
    sampling = {"temperature": 0.5, "top_k": 3}
    assert sampling.items() <= body(model=model, **sampling).items()
    thinking = body(model=model, reasoning_effort="high", **sampling)
    assert not sampling.keys() & thinking.keys()


def test_models_with_one_sampling_value_get_no_top_p() -> None:
    both = {"temperature": 0.5, "top_p": 0.9}
    assert both.items() <= body(model="claude-3-7-sonnet-latest", **both).items()
    assert "top_p" not in body(model=BUDGETED, **both)
    assert body(model=BUDGETED, top_p=0.9)["top_p"] == 0.9


@pytest.mark.parametrize("model", ["claude-opus-4-7", "claude-sonnet-5", "claude-haiku-5-5"])
def test_newer_models_get_no_temperature(model: str) -> None:
    wire = body(model=model, reasoning_effort="none", temperature=0.5, top_p=0.5, top_k=1)
    assert not {"temperature", "top_p", "top_k"} & set(wire)


def test_a_forced_tool_disables_thinking() -> None:
    for model in (BUDGETED, ADAPTIVE):
        wire = body(model=model, tools=TOOLS, tool_choice="required", reasoning_effort="high")
        assert "thinking" not in wire
    wire = body(model="claude-opus-5", tools=TOOLS, tool_choice="required")
    assert wire["thinking"] == {"type": "disabled"}


def test_a_step_without_thinking_keeps_the_budget() -> None:
    """To drop it for one step would lose the prompt cache twice. The API ignores the budget where
    the model cannot start to think."""
    thinking = body(message("user", "Hi"), reasoning_effort="high")["thinking"]
    for said in (tool_round(), tool_round(SIGNED)):
        assert body(*said, reasoning_effort="high")["thinking"] == thinking


def test_without_the_refused_thinking_no_budget_asks_for_more() -> None:
    for model, thinking in ((BUDGETED, None), (ADAPTIVE, {"type": "adaptive"})):
        asked = request(*tool_round(SIGNED), model=model, reasoning_effort="high")
        made = encode_request(asked, sends_thinking=False)
        wire = msgspec.json.decode(made.body, type=Body)
        assert wire.get("thinking") == thinking
        assert not any(one["type"] == "thinking" for one in blocks(messages(wire)[1]))


def test_models_that_bind_thinking_may_drop_it() -> None:
    made = encode_request(request(*tool_round(SIGNED), model=NEWEST))
    wire = msgspec.json.decode(made.body, type=Body)
    assert wire["thinking"] == {
        "type": "adaptive",
        "display": "summarized",
        "block_binding": {"prefix_mismatch_behavior": "drop_block"},
    }
    assert made.betas == ("thinking-binding-controls-2026-08-01",)
    # Also before the first thinking, because a later change would cost the prompt cache.
    assert encode_request(request(*tool_round(), model=NEWEST)).betas == made.betas
    assert encode_request(request(*tool_round(SIGNED), model="claude-opus-5")).betas == ()


def test_thinking_between_tools_is_sent_back_unchanged_at_effort_none() -> None:
    made = encode_request(
        request(*tool_round(SIGNED), model="claude-sonnet-5-5", reasoning_effort="none")
    )
    wire = msgspec.json.decode(made.body, type=Body)
    assert wire["thinking"] == {"type": "between_tools"}
    assert made.betas == ()
    thought = [one for one in blocks(messages(wire)[1]) if one["type"] == "thinking"]
    high = encode_request(request(*tool_round(SIGNED), model=ADAPTIVE, reasoning_effort="high"))
    same = blocks(messages(msgspec.json.decode(high.body, type=Body))[1])
    assert thought == [one for one in same if one["type"] == "thinking"] != []


def test_a_model_that_can_stop_thinking_gets_no_thinking_back_at_effort_none() -> None:
    wire = body(*tool_round(SIGNED), model="claude-opus-5", reasoning_effort="none")
    assert not any(one["type"] == "thinking" for one in blocks(messages(wire)[1]))


# Caching


@pytest.mark.covers("providers-18")
def test_the_system_prompt_and_the_ends_of_two_requests_are_marked_for_the_cache() -> None:
    wire = body(
        message("system", "A"),
        message("system", "B"),
        message("user", "1"),
        message("assistant", "2"),
        message("user", "3", "4"),
        message("assistant", "5", call("c")),
        message("tool", result("c")),
    )
    assert [is_marked(block) for block in objects(wire["system"])] == [False, True]
    expected = [[False], [False], [False, True], [False, False], [True]]
    assert [[is_marked(block) for block in blocks(m)] for m in messages(wire)] == expected


def test_many_results_of_one_step_do_not_hide_the_end_of_the_previous_request() -> None:
    """The API looks back 20 blocks from each mark for what it has cached."""
    calls = [call(f"c{number}") for number in range(25)]
    said = [message("user", "1"), message("assistant", *calls)]
    said += [message("tool", result(f"c{number}")) for number in range(25)]
    first, second = messages(body(said[0])), messages(body(*said))
    assert is_marked(blocks(first[-1])[-1])
    assert is_marked(blocks(second[0])[-1])
    assert is_marked(blocks(second[-1])[-1])


def test_a_model_without_a_cache_gets_no_cache_marks() -> None:
    wire = body(message("system", "A"), message("user", "1"), model="claude-3-opus-20240229")
    assert not any(is_marked(block) for block in objects(wire["system"]))
    assert not any(is_marked(block) for m in messages(wire) for block in blocks(m))


@pytest.mark.covers("providers-18")
def test_thinking_gets_no_cache_mark() -> None:
    wire = body(message("user", "1"), message("assistant", "2", SIGNED))
    assert [is_marked(block) for block in blocks(messages(wire)[1])] == [True, False]


def test_encoding_twice_gives_the_same_bytes() -> None:
    """Encoding does not change the request, and the provider's cache matches."""
    for asked in requests(ADAPTIVE).values():
        assert encode_request(asked).body == encode_request(asked).body


def test_each_request_of_a_chat_extends_the_one_before() -> None:
    said = [*tool_round(SIGNED), message("assistant", "Noon."), message("user", "Thanks")]
    earlier, later = (body(*said[:n], tools=TOOLS) for n in (5, 7))
    assert contents(later)[: len(contents(earlier))] == contents(earlier)
    assert later["tools"] == earlier["tools"]
    assert later["system"] == earlier["system"]


# Other fields


@pytest.mark.covers("providers-15")
def test_the_configured_model_name_is_sent() -> None:
    assert body(model="vendor/Claude:Odd@1")["model"] == "vendor/Claude:Odd@1"


@pytest.mark.parametrize(
    ("model", "most"),
    [("claude-3-haiku-20240307", 4096), ("claude-3-5-haiku-latest", 8192), (NEWEST, 32_000)],
)
def test_an_answer_always_has_a_token_limit(model: str, most: int) -> None:
    assert body(model=model)["max_tokens"] == most
    assert body(model=model, max_output_tokens=77)["max_tokens"] == 77


def test_an_output_schema_is_sent() -> None:
    schema = VARIANTS["schema"]["output_schema"]
    closed = {"additionalProperties": False}
    tags = {"type": "array", "items": {"type": "object", **closed}}
    properties = {"title": {"type": "string"}, "tags": tags}
    sent = {"type": "object", "properties": properties, "required": ["title"], **closed}
    config = body(model=ADAPTIVE, output_schema=schema)["output_config"]
    assert config == {"format": {"type": "json_schema", "schema": sent}}
    assert "output_config" not in body(model="claude-3-7-sonnet-latest", output_schema=schema)


@pytest.mark.covers("providers-5")
def test_the_large_context_window_needs_a_beta_feature() -> None:
    options = Raw(b'{"context_1m_enabled":true}')
    assert encode_request(request(model=BUDGETED, options=options)).betas == (
        "context-1m-2025-08-07",
    )


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (b'{"thinking":{"budget_tokens":0}}', "options.thinking.budget_tokens"),
        (b'{"effort":"extreme"}', "options.effort"),
        (b'{"tempratur":1}', "options.tempratur"),
        (b'{"allowed_domains":["a"],"blocked_domains":["b"]}', "options"),
        (b'{"allowed_domains":[""]}', "options.allowed_domains[0]"),
        (b"[]", "options"),
        (b"{", "options"),
    ],
)
def test_an_invalid_option_is_named(options: bytes, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        encode_request(request(model=BUDGETED, options=Raw(options)))
    assert refused.value.field == field
    assert refused.value.code == "invalid_options"

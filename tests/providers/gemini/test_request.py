"""Encoding Gemini's settings by model: thinking, tools and search."""

import msgspec
import pytest
from msgspec import Raw

from chatd.domain.errors import InvalidInput
from chatd.domain.model.protocol import Effort, ForcedTool, ModelRequest, ToolChoice, ToolSpec
from chatd.providers.gemini.gemini_models import GeminiThinkingOptions, GoogleOptions, SafetySetting
from chatd.providers.gemini.gemini_request import encode_request, gemini_tool_names
from chatd.providers.options import parse_options
from tests.support.providers.gemini_request import check
from tests.support.providers.prompts import message, request

OLD = "gemini-2.5-flash"
NEW = "gemini-3-flash-preview"
WEATHER = ToolSpec(
    name="get_weather",
    description="The weather in a city.",
    input_schema=Raw(b'{"properties":{"city":{"type":["string","null"]}},"required":["city"]}'),
)
NOW = ToolSpec(name="now", description="The time.", input_schema=Raw(b"{}"))

Object = dict[str, object]


def body(sent: ModelRequest, options: GoogleOptions | None = None) -> Object:
    """The body, after the fake's check."""
    data = encode_request(sent, options or GoogleOptions(), gemini_tool_names(sent))
    check(sent.model, data)
    return msgspec.json.decode(data, type=Object)


def generation(sent: ModelRequest, options: GoogleOptions | None = None) -> Object:
    return msgspec.convert(body(sent, options).get("generationConfig", {}), Object)


def thinking(
    model: str, effort: Effort | None = None, config: GeminiThinkingOptions | None = None
) -> object:
    sent = request(model=model, reasoning_effort=effort)
    return generation(sent, GoogleOptions(thinking_config=config)).get("thinkingConfig")


def _objects(value: object) -> list[Object]:
    return msgspec.convert(value, list[Object])


def test_tools_are_declared_with_normalized_names_and_schemas() -> None:
    odd = ToolSpec(name="9 lives", description="", input_schema=Raw(b"null"))
    found = body(request(tools=(NOW, WEATHER, odd), model=OLD))
    properties = {"city": {"anyOf": [{"type": "string"}, {"type": "null"}]}}
    schema = {"type": "object", "properties": properties, "required": ["city"]}
    weather = {"name": "get_weather", "description": "The weather in a city."}
    declared = [
        {"name": "_9_lives", "description": ""},
        {**weather, "parametersJsonSchema": schema},
        {"name": "now", "description": "The time."},
    ]
    assert found["tools"] == [{"functionDeclarations": declared}]
    assert "toolConfig" not in found


@pytest.mark.parametrize(
    ("choice", "config"),
    [
        ("none", {"mode": "NONE"}),
        ("required", {"mode": "ANY"}),
        (ForcedTool(name="now"), {"mode": "ANY", "allowedFunctionNames": ["now"]}),
    ],
)
def test_the_tool_choice_is_a_calling_mode(choice: ToolChoice | ForcedTool, config: Object) -> None:
    found = body(request(tools=(NOW,), tool_choice=choice, model=OLD))
    assert found["toolConfig"] == {"functionCallingConfig": config}


def test_search_and_functions_are_combined_only_where_allowed() -> None:
    searching = GoogleOptions(web_search_enabled=True)
    assert body(request(model=OLD), searching)["tools"] == [{"googleSearch": {}}]
    old = body(request(tools=(NOW,), model=OLD), searching)
    assert [list(tool) for tool in _objects(old["tools"])] == [["functionDeclarations"]]
    new = body(request(tools=(NOW,), model=NEW), searching)
    assert _objects(new["tools"])[0] == {"googleSearch": {}}
    assert new["toolConfig"] == {"includeServerSideToolInvocations": True}


def test_limits_and_sampling_are_sent() -> None:
    sampling = {"temperature": 0.5, "top_p": 0.9, "top_k": 40}
    penalties = {"presence_penalty": 0.1, "frequency_penalty": 0.2}
    sent = request(model="gemini-2.0-flash", max_output_tokens=100, **sampling, **penalties)
    sampling = {"maxOutputTokens": 100, "temperature": 0.5, "topP": 0.9, "topK": 40}
    assert generation(sent) == {**sampling, "presencePenalty": 0.1, "frequencyPenalty": 0.2}


def test_an_output_schema_asks_for_json() -> None:
    schema = b'{"type":"object","properties":{"title":{"type":"string"}},"required":["title"]}'
    found = generation(request(model="gemini-2.0-flash", output_schema=Raw(schema)))
    assert found == {
        "responseMimeType": "application/json",
        "responseJsonSchema": msgspec.json.decode(schema),
    }


@pytest.mark.covers("providers-14")
@pytest.mark.parametrize(
    ("model", "effort", "expected"),
    [
        ("gemini-2.0-flash", "high", None),
        ("gemma-3-27b-it", "high", None),
        ("my-tuned-thing", None, None),
        ("gemini-2.5-flash", None, {"includeThoughts": True}),
        ("gemini-2.5-flash", "none", {"thinkingBudget": 0}),
        ("gemini-2.5-flash", "max", {"thinkingBudget": 24576, "includeThoughts": True}),
        ("gemini-2.5-flash-lite", "minimal", {"thinkingBudget": 512, "includeThoughts": True}),
        ("gemini-2.5-pro", "none", {"thinkingBudget": 128, "includeThoughts": True}),
        ("gemini-2.5-pro", "max", {"thinkingBudget": 32768, "includeThoughts": True}),
        ("gemini-2.5-flash-image", "high", None),
        ("gemini-3-pro-preview", "none", {"thinkingLevel": "LOW", "includeThoughts": True}),
        ("gemini-3-pro-preview", "medium", {"thinkingLevel": "HIGH", "includeThoughts": True}),
        ("gemini-3.1-pro-preview", "medium", {"thinkingLevel": "MEDIUM", "includeThoughts": True}),
        (
            "gemini-3-flash-preview",
            "minimal",
            {"thinkingLevel": "MINIMAL", "includeThoughts": True},
        ),
        ("gemini-3.8-flash", "minimal", {"thinkingLevel": "LOW", "includeThoughts": True}),
        ("gemini-3.8-flash", "xhigh", {"thinkingLevel": "HIGH", "includeThoughts": True}),
        ("gemini-4-argon", "medium", {"thinkingLevel": "MEDIUM", "includeThoughts": True}),
        ("gemini-4-argon", None, {"includeThoughts": True}),
        ("gemini-11-neon", "low", {"thinkingLevel": "LOW", "includeThoughts": True}),
    ],
)
def test_an_effort_becomes_a_level_or_a_budget(
    model: str, effort: Effort | None, expected: Object | None
) -> None:
    assert thinking(model, effort) == expected


@pytest.mark.covers("providers-14")
def test_configured_thinking_wins_over_an_effort() -> None:
    assert thinking(
        OLD, "low", GeminiThinkingOptions(thinking_budget=-1, include_thoughts=False)
    ) == {"thinkingBudget": -1, "includeThoughts": False}
    level = GeminiThinkingOptions(thinking_level="medium")
    expected = {"thinkingLevel": "HIGH", "includeThoughts": True}
    assert thinking("gemini-3-pro-preview", "low", level) == expected


def test_cached_content_replaces_instructions_and_tools() -> None:
    sent = request(
        message("system", "One."),
        message("user", "Hi"),
        model=OLD,
        tools=(NOW,),
        tool_choice="required",
    )
    found = body(sent, GoogleOptions(cached_content="cachedContents/abc"))
    assert found["cachedContent"] == "cachedContents/abc"
    assert not {"systemInstruction", "tools", "toolConfig"} & found.keys()


def test_a_threshold_applies_to_all_unnamed_categories() -> None:
    named = SafetySetting(category="HARM_CATEGORY_HARASSMENT", threshold="OFF")
    options = GoogleOptions(safety_settings=(named,), threshold="BLOCK_ONLY_HIGH")
    found = _objects(body(request(model=OLD), options)["safetySettings"])
    assert [(s["category"], s["threshold"]) for s in found] == [
        ("HARM_CATEGORY_HARASSMENT", "OFF"),
        ("HARM_CATEGORY_HATE_SPEECH", "BLOCK_ONLY_HIGH"),
        ("HARM_CATEGORY_SEXUALLY_EXPLICIT", "BLOCK_ONLY_HIGH"),
        ("HARM_CATEGORY_DANGEROUS_CONTENT", "BLOCK_ONLY_HIGH"),
    ]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (b'{"thinking_config":{"thinking_budget":1,"thinking_level":"low"}}', "thinking_budget"),
        (b'{"thinking_config":{"thinking_budget":-2}}', "thinking_budget"),
        (b'{"thinking_config":{"budget":1}}', "budget"),
        (b'{"threshold":"SOME"}', "threshold"),
        (b'{"safety_settings":[{"category":"X","threshold":"OFF"}]}', "safety_settings"),
        (b'{"web_search":true}', "web_search"),
    ],
)
def test_an_invalid_option_is_named(options: bytes, named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        parse_options(GoogleOptions, Raw(options))

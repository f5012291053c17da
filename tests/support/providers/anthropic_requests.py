"""Requests of every shape, for tests of the encoder."""

from functools import cache

from msgspec import UNSET, Raw

from chatd.domain.ids import ToolCallId
from chatd.domain.model.protocol import (
    ComputerTool,
    ForcedTool,
    ModelRequest,
    PromptCall,
    PromptFile,
    PromptMessage,
    PromptReasoning,
    PromptResult,
    PromptText,
    ToolSpec,
)
from chatd.providers.anthropic.anthropic_decoder import AnthropicDecoder
from chatd.providers.anthropic.anthropic_wire import AnthropicMetadata, pack_metadata
from tests.support.providers.anthropic import STREAMS
from tests.support.providers.prompts import call, message, replayed, request, result
from tests.support.providers.stream_reader import answer_of, read_whole

PNG = b"\x89PNG\r\n\x1a\n-picture"
JPEG = b"\xff\xd8\xff\xe0-picture"
PDF = b"%PDF-1.7 ..."
TOO_BIG = PNG + b"x" * 5 * 1024 * 1024

MODELS = (
    "claude-3-opus-20240229",
    "claude-3-5-sonnet-20241022",
    "claude-3-7-sonnet-20250219",
    "claude-sonnet-4-20250514",
    "claude-opus-4-1",
    "claude-haiku-4-5-20251001",
    "claude-opus-4-5",
    "claude-sonnet-4-6",
    "claude-opus-4-6",
    "claude-opus-4-7",
    "claude-opus-5",
    "claude-sonnet-5",
    "claude-fable-5",
    "claude-fable-5-1",
    "claude-opus-5-5",
    "claude-sonnet-5-5",
    "claude-haiku-5-5",
    "claude-mythos-5-2",
)

TOOLS = (
    ToolSpec(
        name="write_file",
        description="Write a file.",
        input_schema=Raw(
            b'{"type":"object","properties":{"path":{"type":"string"},'
            b'"lines":{"type":["array","null"]}},"required":["path"]}'
        ),
    ),
    ToolSpec(name="now", description="The time.", input_schema=Raw(b'{"properties":null}')),
    ToolSpec(
        name="mcp.example/do it",
        description="",
        input_schema=Raw(b'{"anyOf":[{"properties":{"a":{}},"required":["a"]},{"required":[]}]}'),
    ),
)
SIGNED = PromptReasoning(
    text="Hm.", provider_metadata=pack_metadata(AnthropicMetadata(signature="EqQB"))
)
REDACTED = PromptReasoning(
    text="", provider_metadata=pack_metadata(AnthropicMetadata(redacted_thinking="EmwK"))
)
CLICK = PromptCall(
    id=ToolCallId("toolu_c"), name="computer", input=Raw(b'{"action":"left_click","text":"a"}')
)
SCREEN = PromptResult(
    id=ToolCallId("toolu_c"),
    name="computer",
    text="",
    media=PromptFile(media_type="image/png", data=PNG),
)


def tool_round(*before: PromptReasoning | PromptText) -> list[PromptMessage]:
    return [
        message("system", "Be brief."),
        message("user", "What time is it?"),
        message("assistant", *before, call("toolu_1"), call("toolu_2", "write_file")),
        message("tool", result("toolu_2", name="write_file")),
        message("tool", result("toolu_1")),
    ]


def requests(model: str) -> dict[str, ModelRequest]:
    """Requests by their special feature."""
    return {
        name: request(*messages, model=model, tools=TOOLS)
        for name, messages in conversations().items()
    }


@cache
def conversations() -> dict[str, list[PromptMessage]]:
    said: dict[str, list[PromptMessage]] = {
        "one word": [message("user", "Hi")],
        "two systems": [message("system", "A"), message("system", "B"), message("user", "Hi")],
        "a round of tools": tool_round(),
        "a round of tools after thinking": tool_round(SIGNED, REDACTED, PromptText(text="So.")),
        "words after results": [*tool_round(SIGNED), message("user", "Hurry!")],
        "files": [
            message(
                "user",
                PromptFile(media_type="image/jpg", data=JPEG),
                PromptFile(media_type="application/pdf", data=PDF, name="bill_№1 (new).pdf"),
                PromptFile(media_type="text/csv; charset=utf-8", data=b"a,b", name="a.csv"),
                PromptFile(media_type="video/mp4", data=b"...", name="film.mp4"),
                PromptFile(media_type="image/png", data=b""),
                PromptFile(media_type="image/png", data=TOO_BIG),
            )
        ],
        "failed tools": [
            message("user", "Go"),
            message("assistant", call("toolu_1"), call("toolu_2")),
            message("tool", result("toolu_1", "", is_error=True)),
            message("tool", result("toolu_2", "no", is_error=True, media=SCREEN.media)),
        ],
        "a screen": [
            message("user", "Click"),
            message("assistant", CLICK),
            message("tool", SCREEN),
        ],
    }
    for path in sorted(STREAMS.glob("*.sse")):
        answer = answer_of(read_whole(AnthropicDecoder, path.read_bytes()))
        said[f"replay of {path.stem}"] = [
            message("user", "Hi"),
            *replayed(answer),
            message("user", "Go on"),
        ]
    return said


VARIANTS: dict[str, dict[str, object]] = {
    "plain": {},
    "no tools": {"tools": ()},
    "sampling": {"temperature": 0.3, "top_p": 0.9, "top_k": 5, "max_output_tokens": 2000},
    "hard": {"reasoning_effort": "xhigh", "temperature": 0.3, "max_output_tokens": 50_000},
    "minimal": {"reasoning_effort": "minimal"},
    "short": {"reasoning_effort": "high", "max_output_tokens": 100},
    "no thinking": {"reasoning_effort": "none"},
    "must": {"tool_choice": "required", "reasoning_effort": "high"},
    "must this": {"tool_choice": ForcedTool(name="mcp.example/do it")},
    "must not": {"tool_choice": "none"},
    "screen": {"computer": ComputerTool(width_px=1280, height_px=800)},
    "budget": {"options": Raw(b'{"thinking":{"budget_tokens":60000}}')},
    "search": {
        "options": Raw(
            b'{"web_search_enabled":true,"allowed_domains":["a.org"],"context_1m_enabled":true,'
            b'"disable_parallel_tool_use":true,"thinking_display":"omitted","effort":"max"}'
        )
    },
    "schema": {
        "output_schema": Raw(
            b'{"type":"object","properties":{"title":{"type":"string"},'
            b'"tags":{"type":"array","items":{"type":"object"}}},"required":["title"]}'
        ),
        "tool_choice": "none",
    },
    "forgetful": {"options": Raw(b'{"send_reasoning":false}')},
    "unset": {"options": UNSET},
}

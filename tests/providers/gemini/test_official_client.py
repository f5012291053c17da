"""Google's client decodes streams and encodes requests as chatd does.

Importing it takes most of the time here.
"""

import base64

import msgspec
import pytest
from msgspec import Raw

from chatd.domain.chat.parts import ReasoningPart, TextPart
from chatd.domain.model.protocol import (
    Finished,
    ModelEvent,
    PromptFile,
    SourceFound,
    ToolCallDone,
    ToolSpec,
)
from chatd.providers.gemini.gemini_decoder import GeminiDecoder
from chatd.providers.gemini.gemini_models import GoogleOptions, SafetySetting
from chatd.providers.gemini.gemini_request import encode_request, gemini_tool_names
from chatd.providers.gemini.gemini_wire import unpack_metadata
from chatd.providers.tool_schema import ToolNames
from tests.support.providers.gemini import STREAMS, FakeGemini, stream
from tests.support.providers.google_sdk import GoogleReading, google_models, judge, resent
from tests.support.providers.prompts import message, replayed, request, result
from tests.support.providers.server import FakeServer
from tests.support.providers.stream_reader import answer_of, read_whole

MODEL = "gemini-3-flash-preview"

# Google's client rejects comments and OpenAI's end marker, and raises on an error in a stream.
UNREAD = {"unknown", "cut", "overloaded", "rate_limited"}
READ = sorted(path.stem for path in STREAMS.glob("*.sse") if path.stem not in UNREAD)

REASONS = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "SAFETY": "content-filter",
    "RECITATION": "content-filter",
    "QUANTUM_DECAY": "other",
}

pytestmark = pytest.mark.filterwarnings("ignore")


def read(name: str) -> list[ModelEvent]:
    return read_whole(
        lambda: GeminiDecoder(model=MODEL, names=ToolNames([]), call_prefix="call"), stream(name)
    )


@pytest.mark.parametrize("name", READ)
async def test_googles_client_decodes_the_same(name: str) -> None:
    async with FakeGemini.running() as fake, google_models(fake.url) as models:
        fake.script(stream(name))
        judged = await judge(models, MODEL)
    events = read(name)
    answer = answer_of(events)
    assert "".join(p.text for p in answer.content if isinstance(p, TextPart)) == judged.text
    assert (
        "".join(p.text for p in answer.content if isinstance(p, ReasoningPart)) == judged.thoughts
    )
    calls = [e for e in events if isinstance(e, ToolCallDone) and not e.provider_executed]
    assert [(_given_id(c), c.name, msgspec.json.decode(c.input)) for c in calls] == judged.calls
    assert [e.url for e in events if isinstance(e, SourceFound)] == judged.sources
    assert _signatures(events) == judged.signatures
    end = events[-1]
    if isinstance(end, Finished):
        _check_end(end, judged, called=bool(calls))
    else:
        assert judged.finish == "MALFORMED_FUNCTION_CALL"


def _check_end(end: Finished, judged: GoogleReading, *, called: bool) -> None:
    if judged.blocked is not None:
        assert end.reason == "content-filter"
    else:
        assert end.reason == ("tool-calls" if called else REASONS[judged.finish or ""])
    usage = end.usage
    assert usage.input_tokens + usage.cache_read_tokens == (
        judged.prompt_tokens + judged.tool_tokens
    )
    assert usage.cache_read_tokens == judged.cached_tokens
    assert usage.output_tokens == judged.answer_tokens + judged.thought_tokens
    assert usage.reasoning_tokens == judged.thought_tokens
    assert usage.total_tokens == judged.total_tokens


def _given_id(call: ToolCallDone) -> str | None:
    mark = unpack_metadata(call.provider_metadata)
    return mark.call_id if mark is not None else None


def _signatures(events: list[ModelEvent]) -> list[bytes]:
    found: list[str] = []
    for event in events:
        mark = unpack_metadata(getattr(event, "provider_metadata", msgspec.UNSET))
        if mark is not None and not isinstance(event, Finished):
            found += [span.signature for span in mark.spans]
            found += [mark.signature] if mark.signature is not None else []
    return [base64.b64decode(signature) for signature in found]


async def test_googles_types_know_every_field() -> None:
    """Its types reject unknown fields and send all known ones: the same body comes out."""
    schema = b'{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}'
    said = [message("user", "Hi"), *replayed(answer_of(read("search_and_call")))]
    picture = PromptFile(media_type="image/png", data=b"\x89PNG\r\n\x1a\n")
    sent = request(
        message("system", "Be kind."),
        *said[:2],
        message("tool", result("m6k4", "sunny", "get_weather", media=picture)),
        *replayed(answer_of(read("thinking"))),
        message("user", "And this?", picture),
        *replayed(answer_of(read("signed_text"))),
        message("user", "Go on."),
        model=MODEL,
        tools=(ToolSpec(name="get_weather", description="Weather.", input_schema=Raw(schema)),),
        tool_choice="required",
        max_output_tokens=1000,
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        presence_penalty=0.1,
        frequency_penalty=0.2,
        reasoning_effort="low",
        output_schema=Raw(schema),
    )
    options = GoogleOptions(
        web_search_enabled=True,
        safety_settings=(SafetySetting(category="HARM_CATEGORY_HARASSMENT", threshold="OFF"),),
    )
    body = msgspec.json.decode(
        encode_request(sent, options, gemini_tool_names(sent)), type=dict[str, object]
    )
    async with FakeServer.running() as fake, google_models(fake.url) as models:
        fake.script(stream("text"))
        await resent(models, MODEL, body)
    [recorded] = fake.requests
    assert _canonical(recorded.json) == _canonical(body)


def _canonical(value: object) -> object:
    """Google's client uses other spellings of names and another base64 alphabet."""
    match value:
        case dict():
            items = msgspec.convert(value, dict[str, object]).items()
            return {_camel(name): _canonical(inner) for name, inner in items}
        case list():
            return [_canonical(inner) for inner in msgspec.convert(value, list[object])]
        case str():
            return value.replace("-", "+").replace("_", "/")
        case _:
            return value


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)

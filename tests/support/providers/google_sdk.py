"""Google's own client, to check our requests and our decoder.

Its first compilation warns of escapes in its comments, which must not fail a test.
"""

import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol, cast

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from google import genai
    from google.genai import types

from tests.support.providers.gemini import KEY


@dataclass(kw_only=True)
class GoogleReading:
    """What Google's client reads from a stream."""

    text: str = ""
    thoughts: str = ""
    calls: list[tuple[str | None, str | None, dict[str, object]]] = field(
        default_factory=list[tuple[str | None, str | None, dict[str, object]]]
    )
    signatures: list[bytes] = field(default_factory=list[bytes])
    sources: list[str] = field(default_factory=list[str])
    finish: str | None = None
    blocked: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    answer_tokens: int = 0
    thought_tokens: int = 0
    tool_tokens: int = 0
    total_tokens: int = 0


class Models(Protocol):
    """The one method we use. The client's own signature names a package that is not installed."""

    async def generate_content_stream(
        self,
        *,
        model: str,
        contents: Sequence[types.Content],
        config: types.GenerateContentConfig | None = None,
    ) -> AsyncIterator[types.GenerateContentResponse]: ...


@asynccontextmanager
async def google_models(url: str) -> AsyncGenerator[Models]:
    options = types.HttpOptions(base_url=url, api_version="v1beta")
    client = genai.Client(api_key=KEY, http_options=options)
    try:
        yield cast("Models", client.aio.models)
    finally:
        await client.aio.aclose()


async def judge(models: Models, model: str) -> GoogleReading:
    hi = types.Content(role="user", parts=[types.Part(text="Hi")])
    chunks = await models.generate_content_stream(model=model, contents=[hi])
    return _judged([chunk async for chunk in chunks])


def _judged(chunks: Iterable[types.GenerateContentResponse]) -> GoogleReading:
    found = GoogleReading()
    for chunk in chunks:
        for candidate in chunk.candidates or ():
            _note_candidate(candidate, found)
        if chunk.usage_metadata is not None:
            _note_usage(chunk.usage_metadata, found)
        if chunk.prompt_feedback is not None and chunk.prompt_feedback.block_reason is not None:
            found.blocked = chunk.prompt_feedback.block_reason.value
    return found


def _note_candidate(candidate: types.Candidate, found: GoogleReading) -> None:
    parts = candidate.content.parts if candidate.content is not None else None
    for part in parts or ():
        if part.text is not None:
            if part.thought:
                found.thoughts += part.text
            else:
                found.text += part.text
        if part.function_call is not None:
            call = part.function_call
            found.calls.append((call.id, call.name, dict(call.args or {})))
        if part.thought_signature is not None:
            found.signatures.append(part.thought_signature)
    if candidate.finish_reason is not None:
        found.finish = candidate.finish_reason.value
    if candidate.grounding_metadata is not None:
        for chunk in candidate.grounding_metadata.grounding_chunks or ():
            if chunk.web is not None and chunk.web.uri and chunk.web.uri not in found.sources:
                found.sources.append(chunk.web.uri)


def _note_usage(usage: types.GenerateContentResponseUsageMetadata, found: GoogleReading) -> None:
    found.prompt_tokens = usage.prompt_token_count or found.prompt_tokens
    found.cached_tokens = usage.cached_content_token_count or found.cached_tokens
    found.answer_tokens = usage.candidates_token_count or found.answer_tokens
    found.thought_tokens = usage.thoughts_token_count or found.thought_tokens
    found.tool_tokens = usage.tool_use_prompt_token_count or found.tool_tokens
    found.total_tokens = usage.total_token_count or found.total_tokens


async def resent(models: Models, model: str, body: dict[str, object]) -> None:
    """Parse a body of ours with Google's types, and send what they hold."""
    given = body["contents"]
    assert isinstance(given, list)
    chunks = await models.generate_content_stream(
        model=model,
        contents=[types.Content.model_validate(turn) for turn in cast("list[object]", given)],
        config=types.GenerateContentConfig.model_validate(_config(body)),
    )
    async for _ in chunks:
        pass


def _config(body: dict[str, object]) -> dict[str, object]:
    """Join the fields of the wire that the client's configuration holds together."""
    generation = cast("dict[str, object] | None", body.get("generationConfig"))
    rest = {
        name: value for name, value in body.items() if name not in ("contents", "generationConfig")
    }
    return {**rest, **(generation or {})}

"""Listens with the vendors' own packages: `create(stream=True)`, the cheapest they offer.

Puts the pieces together by appending and joining them, the least that anybody has to do.
"""

from typing import Final

from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from openai.types.responses import (
    ResponseFunctionCallArgumentsDeltaEvent,
    ResponseTextDeltaEvent,
)

from bench.listener import Job, listen_for_jobs

_MODEL: Final = "gpt-4.1"
_DELTAS: Final = (ResponseTextDeltaEvent, ResponseFunctionCallArgumentsDeltaEvent)


class Sdks:
    """One client for each base URL, kept: like ours, it may use its connection again."""

    def __init__(self) -> None:
        self._anthropic: dict[str, AsyncAnthropic] = {}
        self._openai: dict[str, AsyncOpenAI] = {}

    async def listen(self, job: Job) -> str:
        if job.wire == "messages":
            if job.url not in self._anthropic:
                self._anthropic[job.url] = AsyncAnthropic(
                    api_key="sk-none", base_url=job.url, max_retries=0
                )
            return await _messages(self._anthropic[job.url])
        if job.url not in self._openai:
            self._openai[job.url] = AsyncOpenAI(
                api_key="sk-none", base_url=f"{job.url}/v1", max_retries=0
            )
        client = self._openai[job.url]
        return await (_responses(client) if job.wire == "responses" else _chat(client))


async def _messages(client: AsyncAnthropic) -> str:
    pieces: list[str] = []
    stream = await client.messages.create(
        model=_MODEL, max_tokens=4096, messages=[{"role": "user", "content": "Hi"}], stream=True
    )
    async with stream:
        async for event in stream:
            if event.type == "content_block_delta":
                if event.delta.type == "text_delta":
                    pieces.append(event.delta.text)
                elif event.delta.type == "input_json_delta":
                    pieces.append(event.delta.partial_json)
    return "".join(pieces)


async def _responses(client: AsyncOpenAI) -> str:
    stream = await client.responses.create(model=_MODEL, input="Hi", stream=True)
    async with stream:
        return "".join([event.delta async for event in stream if isinstance(event, _DELTAS)])


async def _chat(client: AsyncOpenAI) -> str:
    pieces: list[str] = []
    stream = await client.chat.completions.create(
        model=_MODEL, messages=[{"role": "user", "content": "Hi"}], stream=True
    )
    async with stream:
        async for chunk in stream:
            for choice in chunk.choices:
                if choice.delta.content:
                    pieces.append(choice.delta.content)
                for call in choice.delta.tool_calls or ():
                    function = call.function
                    pieces.append((function and function.arguments) or "")
    return "".join(pieces)


if __name__ == "__main__":
    listen_for_jobs(Sdks().listen)

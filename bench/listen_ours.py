"""Listens as the product does: a provider's stream, every event through the assembler."""

from typing import Final

from msgspec import UNSET, Raw

from bench.listener import Job, Wire, listen_for_jobs
from chatd.clock import SystemClock
from chatd.domain.answer.assembler import Assembler
from chatd.domain.chat.parts import TextPart, ToolCallPart
from chatd.domain.model.protocol import ModelRequest, PromptMessage, PromptText, ToolSpec
from chatd.domain.ports import Provider
from chatd.providers.registry import build
from chatd.providers.secret import Secret
from chatd.providers.settings import Kind, ProviderSettings

_KINDS: Final[dict[Wire, Kind]] = {
    "messages": "anthropic",
    "responses": "openai",
    "chat": "openai",
}
_REQUEST: Final = ModelRequest(
    model="gpt-4.1",
    messages=(PromptMessage(role="user", parts=(PromptText(text="Hi"),)),),
    tools=(
        ToolSpec(
            name="write_file",
            description="Write a file.",
            input_schema=Raw(b'{"type":"object","properties":{"content":{"type":"string"}}}'),
        ),
    ),
    max_output_tokens=4096,
)


class Ours:
    def __init__(self) -> None:
        self._clock = SystemClock()
        self._providers: dict[tuple[Wire, str], Provider] = {}

    async def listen(self, job: Job) -> str:
        assembler, clock = Assembler(), self._clock
        async with self._provider(job).stream(_REQUEST) as events:
            async for event in events:
                # With the time, as a runner does it.
                assembler.feed(event, clock.now().isoformat())
        (part,) = assembler.finished().content
        match part:
            case TextPart():
                return part.text
            case ToolCallPart() if part.args is not UNSET:
                return bytes(part.args).decode()
            case _:
                raise AssertionError(f"neither text nor a call: {part}")

    def _provider(self, job: Job) -> Provider:
        key = (job.wire, job.url)
        if key not in self._providers:
            self._providers[key] = build(
                ProviderSettings(
                    kind=_KINDS[job.wire],
                    api_key=Secret("sk-none"),
                    base_url=f"{job.url}/v1",
                    use_responses_api=job.wire == "responses",
                )
            )
        return self._providers[key]


if __name__ == "__main__":
    listen_for_jobs(Ours().listen)

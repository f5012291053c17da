"""Reading a model's stream: parts to viewers as they come, and an ear for silence.

Closing is lexical: whatever ends the reading, the socket is closed before
anything else happens.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from msgspec import Struct

from chatd.domain.assemble import Assembler
from chatd.domain.classify import classify
from chatd.domain.failures import Classified, ModelFailed
from chatd.domain.model import Failed, ModelEvent, ModelRequest, ProviderFailed
from chatd.domain.ports import Env, Provider
from chatd.domain.silence import SILENCE_S, Silence
from chatd.parts.episodes import Recorder


class Listened(Struct, frozen=True, kw_only=True):
    """How long the model took, from opening the stream to its last word."""

    runtime_ms: int


class Listener:
    """One attempt at one answer."""

    def __init__(self, provider: Provider, env: Env, silence_s: float = SILENCE_S) -> None:
        self._provider = provider
        self._env = env
        self._silence = Silence.armed(env.clock.monotonic(), silence_s)

    async def listen(
        self, request: ModelRequest, assembler: Assembler, recorder: Recorder | None
    ) -> Listened:
        """Raises ModelFailed with what it means; the assembler keeps what was said so far.
        Without a recorder nobody is shown anything."""
        began = self._env.clock.monotonic()
        self._silence = Silence.armed(began, self._silence.limit_s)
        failure = await self._read(request, assembler, recorder)
        self._silence = self._silence.released()
        verdict = self._silence.failure(self._provider.name, failure)
        if verdict is not None:
            raise ModelFailed(verdict)
        took = self._env.clock.monotonic() - began
        return Listened(runtime_ms=round(took * 1000))

    async def _read(
        self, request: ModelRequest, assembler: Assembler, recorder: Recorder | None
    ) -> Classified | None:
        """None if the stream ended well. What a closed socket said after the guard has fired
        is looked at by nobody."""
        try:
            async with self._guarded(), self._provider.stream(request) as events:
                return await self._take_in(events, assembler, recorder)
        except ProviderFailed as failed:
            return classify(failed.fault)
        except TimeoutError:
            if not self._silence.fired:
                raise
            return None

    async def _take_in(
        self, events: AsyncIterator[ModelEvent], assembler: Assembler, recorder: Recorder | None
    ) -> Classified | None:
        async for event in events:
            now = self._env.clock.monotonic()
            self._silence = self._silence.heard(now)
            if isinstance(event, Failed):
                return classify(event.fault)
            parts = assembler.feed(event, self._env.clock.now().isoformat())
            if recorder is not None and parts:
                recorder.add("assistant", parts)
        return None

    @asynccontextmanager
    async def _guarded(self) -> AsyncGenerator[None]:
        """The timer runs beside the reading and cuts it off. Not in a group: that would wrap
        what the stream raises."""
        async with asyncio.timeout(None) as cut:
            guard = asyncio.get_running_loop().create_task(self._watch(cut), name="silence")
            try:
                yield
            finally:
                guard.cancel()

    async def _watch(self, cut: asyncio.Timeout) -> None:
        clock = self._env.clock
        while not self._silence.fired:
            await clock.sleep(self._silence.wait_s(clock.monotonic()), "silence")
            self._silence = self._silence.checked(clock.monotonic())
        cut.reschedule(asyncio.get_running_loop().time())

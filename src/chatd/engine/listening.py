"""Reading a model's stream: parts to viewers as they come, and an ear for silence.

Closing is lexical: whatever ends the reading, the socket is closed before
anything else happens.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from msgspec import Struct

from chatd.domain.assemble import Assembler
from chatd.domain.classify import classify
from chatd.domain.failures import Classified, ModelFailed, known_failure
from chatd.domain.messages import UsageEntry
from chatd.domain.model import Failed, ModelEvent, ModelRequest, ProviderFailed, ProviderFault
from chatd.domain.ports import Env, Provider
from chatd.domain.silence import Silence
from chatd.parts.episodes import Recorder

STEP_S: Final = 900.0
"""An answer that takes longer is cut off, however busily it comes; silence has its own limit."""


class CallFailed(ModelFailed):
    """A model call that gave no answer. It may have cost something all the same."""

    def __init__(self, classified: Classified, paid: tuple[UsageEntry, ...] = ()) -> None:
        super().__init__(classified)
        self.paid = paid


class Listened(Struct, frozen=True, kw_only=True):
    """How it ended, and how long the model took, from opening the stream to its last word.
    `too_long`: it was cut off while it was still talking."""

    runtime_ms: int
    failure: Classified | None = None
    too_long: bool = False


class Listener:
    """One attempt at one answer. `opened` once the model has been reached: from then on the
    call is one to be paid for."""

    def __init__(self, provider: Provider, env: Env, *, within_s: float = STEP_S) -> None:
        self._provider = provider
        self._env = env
        self._within_s = within_s
        self._silence = Silence.armed(env.clock.monotonic())
        self.opened = False

    async def listen(
        self, request: ModelRequest, assembler: Assembler, recorder: Recorder | None
    ) -> Listened:
        """The assembler keeps what was said so far, however it ends. Without a recorder nobody
        is shown anything."""
        began = self._env.clock.monotonic()
        self._silence = Silence.armed(began)
        limit, failure = asyncio.timeout(self._within_s), None
        try:
            async with limit:
                failure = await self._read(request, assembler, recorder)
        except TimeoutError:
            if not limit.expired():
                raise
            failure = known_failure("timeout", self._provider.name)
        self._silence = self._silence.released()
        took = self._env.clock.monotonic() - began
        return Listened(
            runtime_ms=round(took * 1000),
            failure=self._silence.failure(self._provider.name, failure),
            too_long=limit.expired(),
        )

    async def _read(
        self, request: ModelRequest, assembler: Assembler, recorder: Recorder | None
    ) -> Classified | None:
        """None if the stream ended well. What a closed socket said after the guard has fired
        is looked at by nobody."""
        try:
            async with self._guarded(), self._provider.stream(request) as events:
                self.opened = True
                return await self._take_in(events, assembler, recorder)
        except ProviderFailed as failed:
            return classify(failed.fault)
        except ModelFailed as failed:
            return failed.classified
        except TimeoutError:
            if not self._silence.fired:
                raise
            return None
        except asyncio.CancelledError:
            if _told_to_stop():
                raise
            return classify(_reset(self._provider.name))

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


def _told_to_stop() -> bool:
    """Else the cancellation came from below: a transport that gave up in its own way."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _reset(provider: str) -> ProviderFault:
    return ProviderFault(
        message="the connection was given up", provider=provider, transport="reset"
    )

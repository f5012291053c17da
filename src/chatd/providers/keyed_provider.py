"""A provider with several keys, and with a configuration that may be replaced while calls run.

A call that the provider refuses because of its key goes on with the next key, before any part of
an answer. A replaced provider closes its connections when its last call has ended.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from uuid import UUID

from chatd.domain.model.circuit import order_keys, rest_time_s
from chatd.domain.model.classify import classify_fault
from chatd.domain.model.protocol import ModelEvent, ModelRequest, ProviderError
from chatd.domain.ports import Clock, Emit, Provider

KeyRests = dict[UUID, float]
"""Until when each key rests, by the monotonic clock. Shared by all that use these keys."""


class KeyedProvider:
    """Satisfies `ports.Provider`. `clients` has one client per key, in the order of use."""

    def __init__(
        self,
        name: str,
        clients: Mapping[UUID, Provider],
        *,
        clock: Clock,
        emit: Emit,
        rests: KeyRests,
        on_unused: Callable[["KeyedProvider"], None] = lambda _unused: None,
    ) -> None:
        self._name = name
        self._clients = clients
        self._clock = clock
        self._emit = emit
        self._rests = rests
        self._on_unused = on_unused
        self._calls = 0
        self._is_retired = False

    @property
    def name(self) -> str:
        return self._name

    @property
    def is_unused(self) -> bool:
        return self._is_retired and self._calls == 0

    def retire(self) -> None:
        """No new call is expected. A call that comes late is still made."""
        self._is_retired = True
        self._check_unused()

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        self._calls += 1
        try:
            async with AsyncExitStack() as stack:
                yield await self._open(stack, request)
        finally:
            self._calls -= 1
            self._check_unused()

    def can_continue(self, request: ModelRequest) -> bool:
        """The clients differ in their keys only."""
        return all(client.can_continue(request) for client in self._clients.values())

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()

    async def _open(
        self, stack: AsyncExitStack, request: ModelRequest
    ) -> AsyncIterator[ModelEvent]:
        """Raises the error of the last key."""
        now = self._clock.monotonic()
        keys = order_keys(list(self._clients), self._rests, now)
        for left, key in zip(reversed(range(len(keys))), keys, strict=True):
            try:
                return await stack.enter_async_context(self._clients[key].stream(request))
            except ProviderError as failed:
                failure = classify_fault(failed.fault)
                rest_s = rest_time_s(failure)
                if rest_s is not None and len(keys) > 1:
                    self._rests[key] = self._clock.monotonic() + rest_s
                    self._emit(
                        "provider_key_rests",
                        provider=self._name,
                        key_id=key,
                        error_kind=failure.kind,
                        seconds=rest_s,
                    )
                if rest_s is None or left == 0:
                    raise
        raise AssertionError  # there is at least one key, and the last one returns or raises

    def _check_unused(self) -> None:
        if self.is_unused:
            self._on_unused(self)

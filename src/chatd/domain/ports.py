"""What the rooms above bedrock may be handed: Protocols, satisfied by shape."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from chatd.domain.model import ModelEvent, ModelRequest


class Clock(Protocol):
    """Time for services. `tag` names what is waited for, so that a test can wait for the waiter."""

    def monotonic(self) -> float: ...

    async def sleep(self, seconds: float, tag: str) -> None: ...


class Provider(Protocol):
    """A model's API. It neither retries nor classifies: it raises `ProviderFailed` with the
    facts, from opening the stream or from reading it.

    The stream is a context so that closing is lexical: leaving it, by whatever way, closes
    the socket before anything else happens.
    """

    @property
    def name(self) -> str: ...

    def stream(
        self, request: ModelRequest
    ) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]: ...

    async def close(self) -> None: ...

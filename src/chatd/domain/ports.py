"""What the rooms above bedrock may be handed: Protocols, satisfied by shape."""

from typing import Protocol


class Clock(Protocol):
    """Time for services. `tag` names what is waited for, so that a test can wait for the waiter."""

    def monotonic(self) -> float: ...

    async def sleep(self, seconds: float, tag: str) -> None: ...

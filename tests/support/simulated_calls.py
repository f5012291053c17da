"""Calls that spend from a shared limit as a worker does, without a model."""

from random import Random
from typing import Final, Protocol
from uuid import UUID

from chatd.domain.answer.answer import StartedCall
from chatd.domain.chat.messages import TokenUsage
from chatd.domain.deployment.spend import FIRST_OUTPUT_TOKENS, SpendRefusal
from chatd.domain.ids import ModelConfigId
from chatd.domain.model.protocol import ModelConfig, Prices
from chatd.engine.model.budget import SpendBooks, reserve_call
from tests.support.factories import chat

PRICES: Final = Prices(input="10", output="100")
CONFIG: Final = ModelConfig(
    id=ModelConfigId(UUID(int=7)), name="m", provider="p", model="m", prices=PRICES
)


class CallBooks(SpendBooks, Protocol):
    async def open(self, call_id: UUID, micros: int) -> None:
        """Write the call's record with its first reservation."""
        ...

    async def discard(self, call_id: UUID) -> None: ...

    async def close(self, call_id: UUID, cost: int) -> None:
        """Record the usage, which ends the reservation."""
        ...


class SimulatedCalls:
    """One chat, which makes calls until one is refused or stopped."""

    def __init__(
        self,
        books: CallBooks,
        number: int,
        dice: Random,
        *,
        chunk_micros: int,
        max_input_tokens: int = 2000,
    ) -> None:
        self._books = books
        self._number = number
        self._dice = dice
        self._chunk_micros = chunk_micros
        self._max_input_tokens = max_input_tokens
        self.calls = 0

    async def run(self) -> None:
        while await self._call():
            self.calls += 1

    async def _call(self) -> bool:
        call_id = UUID(int=self._number * 1_000_000 + self.calls)
        tokens = self._dice.randrange(1, self._max_input_tokens)
        usage = TokenUsage(input_tokens=tokens)
        call = StartedCall(id=call_id, kind="turn", config=CONFIG, usage=usage)
        cost = tokens * 10
        await self._books.open(call_id, cost + FIRST_OUTPUT_TOKENS * 100)
        allowance = await reserve_call(self._books, chat(), call)
        if isinstance(allowance, SpendRefusal):
            await self._books.discard(call_id)
            return False
        assert allowance is not None
        refusal = None
        for _ in range(self._dice.randrange(1, 120)):
            if refusal is not None:
                break
            cost += self._dice.randrange(1, self._chunk_micros + 1)
            refusal = await allowance.cover(cost)
        await self._books.close(call_id, cost)
        return refusal is None

"""A model and tools with random delays and failures, and a model with a fixed pace."""

import asyncio
import random
from pathlib import Path

import msgspec

from tests.support.chaos.planned_model import PlannedModel, ToolServer
from tests.support.providers.openai_chat import chunk
from tests.support.providers.server import Cut, Gate, RecordedRequest, Reply, Step


class Delay(Gate):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    async def pass_through(self) -> None:
        await asyncio.sleep(self._seconds)


class UnreliableModel(PlannedModel):
    """Streams at a random pace; sometimes refuses with 503, sometimes cuts its answer off."""

    def __init__(self) -> None:
        super().__init__()
        self.dice = random.Random(0)

    def answer(self, request: RecordedRequest) -> Reply:
        self.requests.clear()  # a soak run makes too many to keep
        mood = self.dice.random()
        if mood < 0.02:
            busy = b'{"error":{"message":"busy"}}'
            return Reply(status=503, headers={"content-type": "application/json"}, steps=(busy,))
        if mood < 0.04:
            return Reply(steps=(chunk(content="ans"), Cut()))
        reply = super().answer(request)
        if reply.status != 200:
            return reply
        steps: list[Step] = []
        for piece in reply.steps:
            steps += (piece, Delay(self.dice.choice((0, 0.01, 0.1, 0.4))))
        return Reply(steps=tuple(steps))


class SlowToolServer(ToolServer):
    """Some calls take longer."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.dice = random.Random(0)

    async def work(self, call_id: str) -> None:
        await super().work(call_id)
        await asyncio.sleep(self.dice.choice((0, 0.01, 0.2, 1.0)))


WORDS = 40


class SteadyModel(PlannedModel):
    """Every answer takes `answer_s`. A request outside the plan, such as for a title, gets one
    word."""

    def __init__(self) -> None:
        super().__init__()
        self.answer_s = 4.0
        self._more = asyncio.Event()

    def answer(self, request: RecordedRequest) -> Reply:
        self.requests.clear()
        try:
            reply = super().answer(request)
        except (ValueError, msgspec.MsgspecError):
            return Reply(steps=(chunk(content="Fine"), chunk(finish="stop"), b"data: [DONE]\n\n"))
        self._more.set()
        if reply.status != 200:
            return reply
        steps: list[Step] = []
        for piece in reply.steps:
            steps += (piece, Delay(self.answer_s / len(reply.steps)))
        return Reply(steps=tuple(steps))

    async def busy(self, steps: int) -> None:
        """Wait until that many steps have been requested."""
        while len(self.asked) < steps:
            self._more.clear()
            await self._more.wait()

"""A model that streams one word after the other at a fixed pace."""

import asyncio

import msgspec

from tests.support.chaos.unreliable_model import Delay
from tests.support.planned_model import PlannedModel
from tests.support.providers.openai_chat import chunk
from tests.support.providers.server import RecordedRequest, Reply, Step

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

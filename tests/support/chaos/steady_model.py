"""A model that takes its time and says one word after the other."""

import asyncio

import msgspec

from tests.support.chaos.unreliable_model import Delay
from tests.support.planned_model import PlannedModel
from tests.support.providers.openai_chat import chunk
from tests.support.providers.server import RecordedRequest, Reply, Step

WORDS = 40


class SteadyModel(PlannedModel):
    """Every answer takes `answer_s`. Whoever asks for something that is not in the plan, such as
    a title, gets a word."""

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
        """Until so many steps have been asked for."""
        while len(self.asked) < steps:
            self._more.clear()
            await self._more.wait()

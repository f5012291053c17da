"""A model and tools with random delays and failures, and a model with a fixed pace."""

import asyncio
import random
from pathlib import Path

import msgspec

from tests.support.chaos.billing_judge import ServedCall
from tests.support.chaos.planned_model import PlannedModel, ToolServer
from tests.support.providers.openai_chat import DONE, chunk
from tests.support.providers.server import Cut, Gate, RecordedRequest, Reply, Step

BYTES_PER_TOKEN = 4


class Delay(Gate):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    async def pass_through(self) -> None:
        await asyncio.sleep(self._seconds)


class Serving(Delay):
    """A delay after a piece of a served call, which counts the piece."""

    def __init__(self, call: ServedCall, tokens: int, seconds: float) -> None:
        super().__init__(seconds)
        self._call = call
        self._tokens = tokens

    async def pass_through(self) -> None:
        self._call.output_tokens += self._tokens
        await super().pass_through()


class UnreliableModel(PlannedModel):
    """Streams at a random pace; sometimes refuses with 503, sometimes cuts its answer off.
    `served` are the calls that it accepted, which a real provider would bill."""

    def __init__(self) -> None:
        super().__init__()
        self.dice = random.Random(0)
        self.served: list[ServedCall] = []
        self._serving: dict[int, ServedCall] = {}

    def answer(self, request: RecordedRequest) -> Reply:
        self.requests.clear()  # a soak run makes too many to keep
        mood = self.dice.random()
        if mood < 0.02:
            busy = b'{"error":{"message":"busy"}}'
            return Reply(status=503, headers={"content-type": "application/json"}, steps=(busy,))
        reply = super().answer(request)
        if reply.status != 200:
            return reply
        call = self._begin(request)
        if mood < 0.04:
            return Reply(steps=(chunk(content="ans"), Serving(call, 1, 0), Cut()))
        steps: list[Step] = []
        for piece in reply.steps:
            if piece == DONE:
                steps.append(_usage(call.input_tokens, len(reply.steps) - 1))
            steps += (piece, Serving(call, 1, self.dice.choice((0, 0.01, 0.1, 0.4))))
        return Reply(steps=tuple(steps))

    def _begin(self, request: RecordedRequest) -> ServedCall:
        call = ServedCall(
            name=self.last_step.partition("/")[0],
            began_at=asyncio.get_running_loop().time(),
            input_tokens=len(request.body) // BYTES_PER_TOKEN,
        )
        self.served.append(call)
        self._serving[request.connection] = call
        return call

    async def _serve(
        self, request: RecordedRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        try:
            return await super()._serve(request, reader, writer)
        finally:
            if (call := self._serving.pop(request.connection, None)) is not None:
                call.ended_at = asyncio.get_running_loop().time()


def _usage(prompt_tokens: int, completion_tokens: int) -> bytes:
    usage = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
    data = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return b"data: " + msgspec.json.encode({**data, "choices": [], "usage": usage}) + b"\n\n"


class SlowToolServer(ToolServer):
    """Some calls take longer. `first_run_at`: by the event loop's clock."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.dice = random.Random(0)
        self.first_run_at: dict[str, float] = {}

    async def work(self, call_id: str) -> None:
        self.first_run_at.setdefault(call_id, asyncio.get_running_loop().time())
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

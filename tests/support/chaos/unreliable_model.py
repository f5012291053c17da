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
            begun = () if call.continues else (chunk(content="ans"),)
            return Reply(steps=(*begun, Serving(call, 1, 0), Cut()))
        steps: list[Step] = []
        pieces = [small for step in reply.steps for small in _small_pieces(step)]
        call.whole_tokens = len(pieces)
        for piece in pieces:
            if piece == DONE:
                steps.append(_usage(call.input_tokens, len(pieces) - 1))
            steps += (piece, Serving(call, 1, self.dice.choice((0, 0.01, 0.1, 0.4))))
        return Reply(steps=tuple(steps))

    def _begin(self, request: RecordedRequest) -> ServedCall:
        call = ServedCall(
            name=self.last_step.partition("/")[0],
            step=self.last_step,
            continues=bool(self.last_begun),
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

    def repeats(self, kills: int) -> str:
        """Calls and tokens that a step needed beyond the first whole answer, and how many of these
        calls went on from a text. Failures of the model itself count too."""
        steps: dict[str, list[ServedCall]] = {}
        for call in self.served:
            steps.setdefault(call.step, []).append(call)
        again = [calls for calls in steps.values() if len(calls) > 1]
        repeated = sum(len(calls) - 1 for calls in again)
        continued = sum(call.continues for calls in again for call in calls)
        tokens = sum(
            max(0, sum(call.output_tokens for call in calls) - _whole_tokens(calls))
            for calls in again
        )
        share = f"{continued} of {repeated} repeated calls continued an answer"
        per_kill = f"{repeated / max(kills, 1):.2f} calls, {tokens / max(kills, 1):.2f} tokens"
        return f"{share}, {tokens} tokens repeated; per kill or drain of {kills}: {per_kill}"


def _whole_tokens(calls: list[ServedCall]) -> int:
    return max(call.whole_tokens for call in calls)


def _small_pieces(step: Step) -> list[Step]:
    """The text of an answer in pieces of three characters, so that a kill cuts it anywhere."""
    if not isinstance(step, bytes) or b'"content":' not in step:
        return [step]
    delta = msgspec.json.decode(step.removeprefix(b"data: "), type=_Chunk).choices[0].delta
    text = delta.get("content", "")
    return [chunk(content=text[at : at + 3]) for at in range(0, len(text), 3)]


class _Choice(msgspec.Struct):
    delta: dict[str, str]


class _Chunk(msgspec.Struct):
    choices: list[_Choice]


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

"""Asking the model for an answer: the request, the stream, and what is kept of it.

Reading a model's stream: parts to viewers as they come, and an ear for silence.

Closing is lexical: whatever ends the reading, the socket is closed before
anything else happens.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from chatd.domain.answer import Answer, Keep, Nothing, Refused, judge
from chatd.domain.assemble import Assembler, taken_ids
from chatd.domain.chat import Chat, Episode
from chatd.domain.classify import classify
from chatd.domain.effort import resolve_effort
from chatd.domain.failures import Classified, ModelFailed, for_provider, known_failure
from chatd.domain.messages import Draft, Message, UsageEntry
from chatd.domain.model import Failed, ModelEvent, ModelRequest, ProviderFailed, ProviderFault
from chatd.domain.ports import Env, Provider
from chatd.domain.prompt import Reader, build_prompt
from chatd.domain.provider_tools import guarded_answer
from chatd.domain.silence import Silence
from chatd.domain.step_rows import Call, answer_message, usage_entry
from chatd.engine.attempt import Job
from chatd.engine.turn_context import Setting
from chatd.parts.episodes import Episodes, Recorder

MODEL_CALL_TIMEOUT_S: Final = 900.0
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

    def __init__(
        self, provider: Provider, env: Env, *, within_s: float = MODEL_CALL_TIMEOUT_S
    ) -> None:
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


STRICT: Final = frozenset({"anthropic", "bedrock"})
"""APIs that refuse a conversation in which their own calls are not in perfect order."""


class Answered(Struct, frozen=True, kw_only=True):
    """Rows for history and for the books. No row: the model had nothing to say."""

    messages: tuple[Draft, ...]
    usage: tuple[UsageEntry, ...]


class TooLong(Exception):
    """The answer did not end. What there is of it, the job has heard."""


class Hearing:
    """Satisfies `job.Heard`: an answer that is still coming."""

    def __init__(self, assembler: Assembler, listener: Listener, call: Call) -> None:
        self._assembler = assembler
        self._listener = listener
        self._call = call

    def so_far(self, at: str) -> tuple[Draft, ...]:
        answer = self._assembler.interrupted(at)
        if isinstance(judge(answer, ""), Nothing):
            return ()
        return (answer_message(answer, self._call),)

    def paid(self) -> tuple[UsageEntry, ...]:
        """What it cost nobody has told us, unless it was stopped after its last word."""
        if not self._listener.opened:
            return ()
        usage = self._assembler.finished().usage
        return (usage_entry("turn", self._call, usage, ok=False),)


class ModelCall:
    def __init__(
        self, episodes: Episodes, env: Env, *, within_s: float = MODEL_CALL_TIMEOUT_S
    ) -> None:
        self._episodes = episodes
        self._env = env
        self._within_s = within_s

    async def answer(self, job: Job, setting: Setting) -> Answered:
        """Raises CallFailed: what was said until then is shown no longer and kept nowhere. Or
        TooLong."""
        chat, history = job.chat, job.work.history
        assembler = Assembler(taken_ids(history))
        listener = Listener(setting.choice.provider, self._env, within_s=self._within_s)
        call = Call(config=setting.config, reasoning_effort=chat.reasoning_effort)
        hearing = Hearing(assembler, listener, call)
        recorder = self._episodes.open(Episode.of(chat))
        job.hears(hearing)
        try:
            request = request_for(chat, history, setting)
            listened = await listener.listen(request, assembler, recorder)
        finally:
            recorder.close()
        if listened.too_long:
            raise TooLong
        if listened.failure is not None:
            job.owes(hearing.paid())
            named = for_provider(listened.failure, setting.config.provider)
            raise CallFailed(named, hearing.paid())
        done = Call(
            config=setting.config,
            reasoning_effort=chat.reasoning_effort,
            runtime_ms=listened.runtime_ms,
        )
        answer = assembler.finished()
        if setting.choice.kind in STRICT:
            answer = replace(answer, content=guarded_answer(answer.content))
        return _kept(job, answer, done)


def _kept(job: Job, answer: Answer, call: Call) -> Answered:
    match judge(answer, call.config.provider):
        case Keep():
            paid = (usage_entry("turn", call, answer.usage),)
            return Answered(messages=(answer_message(answer, call),), usage=paid)
        case Nothing():
            return Answered(messages=(), usage=(usage_entry("turn", call, answer.usage),))
        case Refused() as refused:
            paid = (usage_entry("turn", call, answer.usage, ok=False),)
            job.owes(paid)
            raise CallFailed(refused.failure, paid)


def request_for(chat: Chat, history: Sequence[Message], setting: Setting) -> ModelRequest:
    config, choice = setting.config, setting.choice
    reader = Reader(
        provider=config.provider,
        origins=choice.origins,
        strict_tools=choice.kind in STRICT,
        instructions=setting.instructions,
    )
    prompt = build_prompt(history, reader)
    return ModelRequest(
        model=config.model,
        messages=prompt,
        tools=setting.specs,
        max_output_tokens=config.max_output_tokens,
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        presence_penalty=config.presence_penalty,
        frequency_penalty=config.frequency_penalty,
        reasoning_effort=resolve_effort(chat.reasoning_effort, config.reasoning_effort),
        options=config.options,
    )

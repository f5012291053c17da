"""Asking the model for an answer: the request, the stream, and what is kept of it."""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from chatd.domain.answer import Answer, Keep, Nothing, Refused, judge
from chatd.domain.assemble import Assembler, taken_ids
from chatd.domain.chat import Chat, Episode
from chatd.domain.effort import resolve_effort
from chatd.domain.failures import for_provider
from chatd.domain.messages import Draft, Message, UsageEntry
from chatd.domain.model import ModelRequest
from chatd.domain.ports import Env
from chatd.domain.prompt import Reader, build_prompt
from chatd.domain.provider_tools import guarded_answer
from chatd.domain.step_rows import Call, answer_message, usage_entry
from chatd.engine.job import Job
from chatd.engine.listening import STEP_S, CallFailed, Listener
from chatd.engine.setting import Setting
from chatd.parts.episodes import Episodes

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


class Answering:
    def __init__(self, episodes: Episodes, env: Env, *, within_s: float = STEP_S) -> None:
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

"""Having a model write a summary, so that the chat fits into its context again."""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from chatd.domain.assemble import Assembler
from chatd.domain.chat import Episode
from chatd.domain.compaction import compactable, effective_threshold, measure
from chatd.domain.condense import condensed
from chatd.domain.decide import Compact
from chatd.domain.failures import Classified, for_provider, known_failure
from chatd.domain.messages import Draft, Message, UsageEntry
from chatd.domain.model import ModelRequest
from chatd.domain.ports import Env
from chatd.domain.step_rows import Call, usage_entry
from chatd.domain.summary import (
    Plan,
    call_id,
    summary_call,
    summary_failed,
    summary_request,
    summary_result,
    summary_rows,
    summary_text,
)
from chatd.engine.attempt import Job
from chatd.engine.model_call import CallFailed, Listener, request_for
from chatd.engine.spend_guard import SpendGuard
from chatd.engine.turn_context import Setting
from chatd.parts.episodes import Episodes

MOST_HALVINGS: Final = 5


class Summary(Struct, frozen=True, kw_only=True):
    """Rows for history and for the books."""

    messages: tuple[Draft, ...]
    usage: tuple[UsageEntry, ...]


class _Writing:
    """One call for a summary. Satisfies `job.Heard`: stopped, it leaves nothing but a bill."""

    def __init__(self, setting: Setting, env: Env, spent: tuple[UsageEntry, ...]) -> None:
        self._setting = setting
        self._listener = Listener(setting.choice.provider, env)
        self._assembler = Assembler()
        self._spent = spent
        self._call = Call(config=setting.config)

    def so_far(self, at: str) -> tuple[Draft, ...]:
        del at
        return ()

    def paid(self, *, ok: bool = False) -> tuple[UsageEntry, ...]:
        if not self._listener.opened:
            return self._spent
        usage = self._assembler.finished().usage
        return (*self._spent, usage_entry("compaction", self._call, usage, ok=ok))

    async def write(self, request: ModelRequest) -> str:
        """Raises CallFailed, with the bill of the tries before."""
        provider = self._setting.config.provider
        listened = await self._listener.listen(request, self._assembler, None)
        self._call = Call(config=self._setting.config, runtime_ms=listened.runtime_ms)
        if listened.failure is not None:
            raise CallFailed(for_provider(listened.failure, provider), self.paid())
        text = summary_text(self._assembler.finished())
        if text is None:
            raise CallFailed(known_failure("generic", provider), self.paid())
        return text

    def rows(self, plan: Plan, text: str) -> Summary:
        rows = summary_rows(plan, text, self._call, self._assembler.finished())
        return Summary(messages=rows, usage=self.paid(ok=True))


class SummaryCall:
    def __init__(self, episodes: Episodes, env: Env) -> None:
        self._episodes = episodes
        self._env = env

    def possible(self, history: Sequence[Message]) -> bool:
        return compactable(history)

    async def summarize(
        self, job: Job, setting: Setting, action: Compact | None, purse: SpendGuard
    ) -> Summary:
        """`action` is None if the model itself has said that the prompt is too long. `purse` is
        asked before every call but the first. Raises CallFailed."""
        plan = self._plan(job.work.history, setting, action)
        recorder = self._episodes.open(Episode.of(job.chat))
        recorder.add("assistant", (summary_call(plan),))
        try:
            text, writing = await self._fitting(job, setting, purse, refused=action is None)
            recorder.add("tool", (summary_result(plan, text),))
            return writing.rows(plan, text)
        except CallFailed as failed:
            recorder.add("tool", (summary_failed(plan, failed.message),))
            raise
        finally:
            recorder.close()

    def _plan(self, history: Sequence[Message], setting: Setting, action: Compact | None) -> Plan:
        rules = setting.rules
        return Plan(
            call_id=call_id(self._env.new_id()),
            source="auto" if action is None else action.source,
            threshold=effective_threshold(rules.compaction_threshold),
            fill=measure(history, rules.context_limit) if action is None else action.fill,
        )

    async def _fitting(
        self, job: Job, setting: Setting, purse: SpendGuard, *, refused: bool
    ) -> tuple[str, _Writing]:
        """Of the whole, unless the model has `refused` that already; else of ever less of it."""
        request = request_for(job.chat, job.work.history, setting)
        halvings, spent = int(refused), tuple[UsageEntry, ...]()
        while True:
            writing = _Writing(setting, self._env, spent)
            job.hears(writing)
            try:
                return await writing.write(summary_request(_shorter(request, halvings))), writing
            except CallFailed as failed:
                job.owes(failed.paid)
                if failed.classified.kind != "context_overflow" or halvings == MOST_HALVINGS:
                    raise
                halvings, spent = halvings + 1, failed.paid
            if (refusal := await purse.check(job.chat)) is not None:
                raise CallFailed(Classified(kind="usage_limit", error=refusal), spent)


def _shorter(request: ModelRequest, halvings: int) -> ModelRequest:
    if halvings == 0:
        return request
    return msgspec.structs.replace(request, messages=condensed(request.messages, halvings))

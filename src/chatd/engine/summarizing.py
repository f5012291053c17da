"""Having a model write a summary, so that the chat fits into its context again."""

from collections.abc import Sequence

from chatd.domain.assemble import Assembler
from chatd.domain.chat import Chat, Episode
from chatd.domain.compaction import compactable, effective_threshold, measure
from chatd.domain.decide import Compact
from chatd.domain.failures import ModelFailed, known_failure
from chatd.domain.messages import Draft, Message, UsageEntry
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
from chatd.engine.answering import request_for
from chatd.engine.listening import Listener
from chatd.engine.runner import Runner
from chatd.engine.setting import Setting
from chatd.parts.episodes import Episodes, Recorder


class Summarizing:
    def __init__(self, episodes: Episodes, env: Env) -> None:
        self._episodes = episodes
        self._env = env

    def possible(self, history: Sequence[Message]) -> bool:
        return compactable(history)

    async def summarize(
        self, runner: Runner, setting: Setting, action: Compact | None
    ) -> tuple[tuple[Draft, ...], tuple[UsageEntry, ...]]:
        """Rows for history and the books. `action` is None if the model itself has said that
        the prompt is too long. Raises ModelFailed."""
        chat = runner.work.chat
        plan = self._plan(runner.work.history, setting, action)
        recorder = self._episodes.open(Episode.of(chat))
        recorder.add("assistant", (summary_call(plan),))
        try:
            return await self._write(chat, runner.work.history, setting, plan, recorder)
        except ModelFailed as failed:
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

    async def _write(
        self,
        chat: Chat,
        history: Sequence[Message],
        setting: Setting,
        plan: Plan,
        recorder: Recorder,
    ) -> tuple[tuple[Draft, ...], tuple[UsageEntry, ...]]:
        assembler = Assembler()
        listener = Listener(setting.choice.provider, self._env)
        request = summary_request(request_for(chat, history, setting))
        listened = await listener.listen(request, assembler, None)
        answer = assembler.finished()
        text = summary_text(answer)
        if text is None:
            raise ModelFailed(known_failure("generic", setting.config.provider))
        recorder.add("tool", (summary_result(plan, text),))
        call = Call(config=setting.config, runtime_ms=listened.runtime_ms)
        rows = summary_rows(plan, text, call, answer)
        return rows, (usage_entry("compaction", call, answer.usage),)

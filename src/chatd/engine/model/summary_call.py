"""The model call that writes a summary of a chat, so that it fits its context window again."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from chatd.domain.answer.answer import Answer
from chatd.domain.chat.messages import Message, UsageEntry, local_calls
from chatd.domain.chat.row import Episode
from chatd.domain.decisions import Compact
from chatd.domain.errors import InvariantBroken
from chatd.domain.model.circuit import CallRefused
from chatd.domain.model.protocol import ModelRequest
from chatd.domain.ports import Env
from chatd.domain.prompt.compaction import (
    SummaryPlan,
    effective_threshold,
    measure_fill,
    newest_context,
    read_summary,
    summary_call,
    summary_call_id,
    summary_failed,
    summary_request,
    summary_result,
    summary_rows,
)
from chatd.domain.prompt.kept_rows import choose_kept
from chatd.domain.prompt.repair import shrink_prompt
from chatd.engine.model.attempt import Attempt
from chatd.engine.model.call_records import DebugRecorder
from chatd.engine.model.circuits import Circuits
from chatd.engine.model.file_loader import FileLoader
from chatd.engine.model.model_call import (
    CallRows,
    ModelCall,
    ModelCallError,
    SpendExceeded,
    TurnContext,
    build_request,
)
from chatd.engine.model.spend_guard import SpendGuard, SpendRefused
from chatd.stream.episodes import EpisodeRegistry, PartRecorder

MAX_PROMPT_HALVINGS: Final = 5


class SummaryCall(Struct, frozen=True, kw_only=True):
    episodes: EpisodeRegistry
    spend_guard: SpendGuard
    circuits: Circuits
    debug: DebugRecorder
    env: Env
    files: FileLoader | None = None

    async def summarize(
        self,
        attempt: Attempt,
        context: TurnContext,
        writers: Sequence[TurnContext],
        action: Compact | None,
    ) -> CallRows | CallRefused:
        """The first of the `writers` that can writes the summary. A provider that fails for all
        chats is not called; its refusal if it is the only one. A model that spend rules refuse is
        skipped unless it is the last. `action` is None if the provider rejected the prompt as too
        long. Raises ModelCallError and SpendRefused."""
        plan = self._plan(attempt.history, context, action)
        recorder = self.episodes.open(Episode.of(attempt.chat))
        refused: CallRefused | None = None
        failed: ModelCallError | None = None
        unpaid: SpendRefused | None = None
        usage: tuple[UsageEntry, ...] = ()
        try:
            for writer in writers:
                if (refused := self.circuits.request_call(writer.config.provider)) is not None:
                    continue
                if failed is None and unpaid is None:
                    recorder.add("assistant", (summary_call(plan),))
                try:
                    return await self._write(
                        attempt, writer, plan, recorder, usage=usage, halvings=int(action is None)
                    )
                except SpendExceeded:
                    raise
                except ModelCallError as error:
                    failed, usage = error, error.usage
                except SpendRefused as error:
                    if writer is writers[-1]:
                        raise
                    unpaid, usage = error, attempt.unrecorded_usage()
            if failed is None and refused is not None and not usage:
                return refused
            raise failed or unpaid or InvariantBroken("A summary needs a model that writes it.")
        except (ModelCallError, SpendRefused) as error:
            recorder.add("tool", (summary_failed(plan, error.message),))
            raise
        finally:
            recorder.close()

    async def _write(
        self,
        attempt: Attempt,
        writer: TurnContext,
        plan: SummaryPlan,
        recorder: PartRecorder,
        *,
        usage: tuple[UsageEntry, ...],
        halvings: int,
    ) -> CallRows:
        provider = writer.config.provider
        try:
            with self.circuits.watch_call(provider):
                return await self._call_until_fitting(
                    attempt, writer, plan, recorder, usage, halvings=halvings
                )
        except ModelCallError as error:
            self.env.emit(
                "summary_failed",
                chat_id=attempt.chat.id,
                error_kind=error.classified.kind,
                provider=provider,
                model=writer.config.model,
                detail=" ".join((error.classified.error.detail or "").split()),
            )
            raise

    def _plan(
        self, history: Sequence[Message], context: TurnContext, action: Compact | None
    ) -> SummaryPlan:
        rules = context.rules
        return SummaryPlan(
            call_id=summary_call_id(self.env.new_id()),
            source="auto" if action is None else action.source,
            threshold=effective_threshold(rules.compaction_threshold),
            fill=measure_fill(history, rules.context_limit) if action is None else action.fill,
        )

    async def _call_until_fitting(
        self,
        attempt: Attempt,
        context: TurnContext,
        plan: SummaryPlan,
        recorder: PartRecorder,
        earlier_usage: tuple[UsageEntry, ...],
        *,
        halvings: int,
    ) -> CallRows:
        """Halve the prompt until the provider accepts it. Forbid tools if the model calls one."""
        request = await build_request(attempt, context, loader=self.files)
        while True:
            call = ModelCall("compaction", context, self.env, earlier_usage=earlier_usage)
            has_called = False
            try:
                shrunk = summary_request(_shrunk(request, halvings))
                answer = await self.debug.observe(
                    attempt.chat, call, shrunk, partial(self._run, attempt, call, shrunk, recorder)
                )
                text = read_summary(answer, context.config.provider)
                has_called = bool(local_calls(answer.content))
                if not isinstance(text, str):
                    raise call.rejected(attempt, text)
            except ModelCallError as error:
                if error.classified.kind == "context_overflow" and halvings < MAX_PROMPT_HALVINGS:
                    halvings += 1
                elif has_called and request.tool_choice != "none":
                    # This costs the provider's cache, but the model cannot call a tool again.
                    request = replace(request, tool_choice="none")
                else:
                    raise
                earlier_usage = error.usage
            else:
                history, limits = attempt.history, context.rules.compaction
                kept = choose_kept(history, limits.kept_tokens, halvings)
                recorder.add("tool", (summary_result(plan, text, kept),))
                files = newest_context(history, kept)
                rows = summary_rows(plan, text, call.record, answer, files, kept=kept)
                facts = {
                    "source": plan.source,
                    "model": context.config.model,
                    "context_tokens": plan.fill.tokens,
                    "summary_chars": len(text),
                    "kept_messages": kept.messages,
                    "kept_tokens": kept.tokens,
                }
                usage = call.usage_entries(ok=True)
                return CallRows(messages=rows, usage=usage, compacted=facts)

    async def _run(
        self, attempt: Attempt, call: ModelCall, request: ModelRequest, recorder: PartRecorder
    ) -> Answer:
        return await call.run(attempt, request, self.spend_guard, recorder)


def _shrunk(request: ModelRequest, halvings: int) -> ModelRequest:
    if halvings == 0:
        return request
    messages = shrink_prompt(request.messages, halvings)
    return replace(request, messages=messages, kept_wire=None)

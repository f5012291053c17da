"""Steps that call a model: an answer or a summary. Each ends in one commit.

Decides after a failed call: retry after a delay, compact because the context is full, or fail the
turn. Every call's usage is recorded by the next commit, failed calls included. No call is made
past a spend limit, nor to a provider that fails for all chats.
"""

from collections.abc import Awaitable, Callable
from typing import Final, assert_never

from msgspec import Struct
from msgspec.structs import replace

from chatd.domain.answer.answer import (
    Answer,
    EmptyAnswer,
    KeepAnswer,
    RejectAnswer,
    judge_answer,
)
from chatd.domain.answer.assembler import used_call_ids
from chatd.domain.answer.partial import continuation, mark_broken_off
from chatd.domain.answer.tool_calls import surplus_notice
from chatd.domain.backoff import spread
from chatd.domain.chat.commands import CommitStep, FinishTurn, RecordRetry
from chatd.domain.chat.messages import UsageEntry, empty_answer_notice, has_notice, needs_next_step
from chatd.domain.chat.row import (
    NO_SETBACKS,
    Chat,
    ChatError,
    ChosenFallback,
    Episode,
    Fence,
    ModelSwitch,
    RetryState,
)
from chatd.domain.decisions import Compact
from chatd.domain.model.circuit import CallRefused, is_wait_over
from chatd.domain.model.config import effort_notice, is_refuted, learn_limit, replacement_notice
from chatd.domain.model.failures import ClassifiedFailure
from chatd.domain.model.fallback import (
    PromptNeeds,
    fallback_notice,
    needs_fallback,
)
from chatd.domain.model.protocol import ModelConfig, ModelRequest
from chatd.domain.model.retry import (
    DEFAULT_OUTAGE_S,
    CompactFirst,
    GiveUp,
    OutageWait,
    RetryAfter,
    decide_retry,
    is_continuation_refused,
    retry_state,
)
from chatd.domain.model.usage import has_files, prefix_loss, utf8_size
from chatd.domain.ports import Env, ModelSource
from chatd.domain.prompt.builder import PendingUpdate, is_paused, next_update
from chatd.domain.prompt.compaction import (
    is_compactable,
    measure_fill,
    rows_for_prompt,
    summary_failed_error,
    summary_failed_notice,
)
from chatd.domain.prompt.kept_rows import clear_results, count_cleared
from chatd.domain.prompt.provider_content import drop_unpaired_in_answer
from chatd.domain.text import utc_text
from chatd.engine.model.attempt import Attempt, Committer, PartialMessages
from chatd.engine.model.call_records import DebugRecorder
from chatd.engine.model.circuits import Circuits
from chatd.engine.model.file_loader import FileLoader
from chatd.engine.model.model_call import (
    STRICT_PAIRING_KINDS,
    AnswerTimeout,
    AnswerTooLarge,
    CallRows,
    ModelCall,
    ModelCallError,
    SpendExceeded,
    TurnContext,
    build_request,
)
from chatd.engine.model.model_choice import FallbackSearch, find_fallback
from chatd.engine.model.spend_guard import SpendGuard, SpendRefused
from chatd.engine.model.summary_call import SummaryCall
from chatd.store.chat.operation import AppliedChange
from chatd.stream.episodes import EpisodeRegistry

ANSWER_TIMEOUT_ERROR: Final = ChatError(
    kind="timeout", message="The answer took longer than an answer may take.", retryable=True
)

MIN_PROVIDER_WAIT_S: Final = 1.0

MAX_SUMMARY_ATTEMPTS: Final = 3
"""In a row, while the context window has room: the chat can go on without a summary."""


class ModelStep(Struct, frozen=True, kw_only=True):
    episodes: EpisodeRegistry
    committer: Committer
    spend_guard: SpendGuard
    circuits: Circuits
    debug: DebugRecorder
    summary_call: SummaryCall
    models: ModelSource
    env: Env
    files: FileLoader | None = None
    timeout_s: float | None = None
    outage_s: float = DEFAULT_OUTAGE_S

    async def generate(self, attempt: Attempt, context: TurnContext) -> AppliedChange:
        if (refused := self.circuits.request_call(context.config.provider)) is not None:
            switched = await self._fall_back_from(attempt, context, refused.cause)
            return switched or await self._wait_for_provider(attempt, context, refused)
        try:
            with self.circuits.watch_call(context.config.provider) as on_answering:
                rows = await self._call(attempt, context, on_answering)
        except SpendRefused as refused:
            # Earlier calls of the step, such as for a summary, are recorded.
            unpaid = attempt.unrecorded_usage()
            return await self._fail(attempt, context, refused.refusal.error, unpaid)
        except AnswerTimeout:
            return await self._keep_partial(attempt, context, ANSWER_TIMEOUT_ERROR)
        except (AnswerTooLarge, SpendExceeded) as error:
            return await self._keep_partial(attempt, context, error.classified.error)
        except ModelCallError as error:
            self.env.emit(
                "model_failed",
                chat_id=attempt.chat.id,
                error_kind=error.classified.kind,
                attempt=attempt.chat.attempt,
                provider=context.config.provider,
                detail=" ".join((error.classified.error.detail or "").split()),
            )
            await self._learn_limit(context, error)
            return await self._retry_or_fail(attempt, context, error)
        goes_on = any(needs_next_step(draft) for draft in rows.messages)
        if not goes_on and (context.hooks.has("step") or context.hooks.has("turn_end")):
            # The hooks are asked between the commit of the answer and the end of the turn.
            goes_on = not all(draft.is_notice for draft in rows.messages)
        kind = CommitStep if goes_on else FinishTurn
        step = attempt.step(kind, rows.messages, rows.usage, client_tools=context.client_names)
        applied = await self.committer.commit(attempt, step)
        self.spend_guard.on_booked(attempt.chat)
        if (cleared := count_cleared(rows.messages)) is not None:
            results, tokens = cleared
            self.env.emit(
                "results_cleared", chat_id=attempt.chat.id, results=results, tokens=tokens
            )
        learned = context.choice.learned
        told = rows.usage[-1].usage if rows.usage else None
        if learned is not None and is_refuted(learned, told):
            await self.models.forget_limit(context.config.id, learned)
        return applied

    async def _learn_limit(self, context: TurnContext, error: ModelCallError) -> None:
        learned = learn_limit(
            error.classified,
            known=context.config.context_limit,
            request_tokens=error.request_tokens,
            by_user_key=context.choice.by_user_key,
        )
        if learned is not None:
            await self.models.learn_limit(context.config.id, learned)

    async def compact(
        self, attempt: Attempt, context: TurnContext, action: Compact | None
    ) -> AppliedChange:
        """`action` is None if the provider rejected the prompt as too long. A compaction that a
        user requested ends the turn; any other continues it."""
        failed_calls = (attempt.chat.setbacks or NO_SETBACKS).failed_calls
        writers = [context]
        # The model for summaries is tried once. An overflow before it counts as a failed call.
        if (writer := context.for_summary) is not context and failed_calls <= int(action is None):
            writers.insert(0, writer)
        try:
            rows = await self.summary_call.summarize(attempt, context, writers, action)
        except SpendRefused as refused:
            # Earlier calls of the step, such as for a summary, are recorded.
            unpaid = attempt.unrecorded_usage()
            return await self._fail(attempt, context, refused.refusal.error, unpaid)
        except ModelCallError as error:
            return await self._retry_or_go_on(attempt, context, error, action)
        if isinstance(rows, CallRefused):
            switched = await self._fall_back_from(attempt, context, rows.cause)
            return switched or await self._wait_for_provider(attempt, context, rows)
        is_manual = action is not None and action.source == "manual"
        kind = FinishTurn if is_manual else CommitStep
        step = attempt.step(kind, rows.messages, rows.usage, compacted=True)
        applied = await self.committer.commit(attempt, step)
        self.env.emit("chat_compacted", chat_id=attempt.chat.id, **rows.compacted)
        return applied

    async def _retry_or_go_on(
        self,
        attempt: Attempt,
        context: TurnContext,
        error: ModelCallError,
        action: Compact | None,
    ) -> AppliedChange:
        """After a failed summary: a fallback of the model writes it, if there is one. Else retry
        what may pass by, a few times only while the chat can do without. Then go on without a
        summary and say so once; fail the turn only if the window is full."""
        if isinstance(error, SpendExceeded):
            return await self._fail(attempt, context, error.classified.error, error.usage)
        switched = await self._fall_back_from(attempt, context, error.classified, error)
        if switched is not None:
            return switched
        is_manual = action is not None and action.source == "manual"
        must_have = action is None or (action.fill.is_full and not is_manual)
        failures = (attempt.chat.setbacks or NO_SETBACKS).failed_calls + 1
        decision = decide_retry(
            error.classified,
            failures,
            jitter=self.env.jitter(),
            outage=self._outage(attempt, error),
        )
        if isinstance(decision, RetryAfter) and (must_have or failures < MAX_SUMMARY_ATTEMPTS):
            return await self._retry(attempt, error, decision.delay_s)
        if must_have:
            failure = summary_failed_error(error.classified)
            return await self._fail(attempt, context, failure, error.usage)
        notice = summary_failed_notice(error.classified, "manual" if is_manual else "auto")
        kind = FinishTurn if is_manual else CommitStep
        step = attempt.step(kind, (notice,), error.usage, compacted=True)
        return await self.committer.commit(attempt, step)

    async def _call(
        self, attempt: Attempt, context: TurnContext, on_answering: Callable[[], None]
    ) -> CallRows:
        """Raises ModelCallError."""
        before = _next_messages(attempt, context)
        recorder = self.episodes.open(Episode.of(attempt.chat))

        async def run(request: ModelRequest) -> tuple[ModelCall, Answer]:
            call = ModelCall(
                "turn",
                context,
                self.env,
                timeout_s=self.timeout_s,
                reasoning_effort=attempt.chat.reasoning_effort,
                used_ids=used_call_ids(attempt.history),
                before=tuple(pending.draft for pending in before),
            )
            call.on_answering = on_answering
            return call, await self.debug.observe(
                attempt.chat,
                call,
                request,
                lambda: call.run(attempt, request, self.spend_guard, recorder),
            )

        try:
            request = await build_request(attempt, context, before, self.files)
            self._compare(attempt, request)
            call, answer = await self._continue_or_begin(attempt, context, request, run)
        finally:
            recorder.close()
        # A call and its result may be on two sides of a pause.
        is_in_pause = answer.is_paused or is_paused(attempt.history)
        if context.choice.kind in STRICT_PAIRING_KINDS and not is_in_pause:
            answer = replace(answer, content=drop_unpaired_in_answer(answer.content))
        match judge_answer(answer, context.config.provider):
            case KeepAnswer():
                kept = call.messages(answer)
                surplus = surplus_notice(answer.calls_made, context.limits.calls)
                if surplus is not None and not has_notice(attempt.history, "calls_over_limit"):
                    kept = (*kept, surplus)
                if not answer.has_output and not answer.is_paused:
                    kept = (*kept, empty_answer_notice(has_reasoning=True))
                return CallRows(messages=kept, usage=call.usage_entries(ok=True))
            case EmptyAnswer():
                told = (empty_answer_notice(has_reasoning=False),)
                return CallRows(messages=told, usage=call.usage_entries(ok=True))
            case RejectAnswer() as refused:
                raise call.rejected(attempt, refused.failure)

    def _compare(self, attempt: Attempt, request: ModelRequest) -> None:
        """Files are not held for the next comparison: their bytes are shared with no history."""
        before, attempt.sent = attempt.sent, None if has_files(request) else request
        if before is not None and attempt.sent is not None:
            loss = prefix_loss(before, request)
            self.env.emit(
                "prompt_extended",
                chat_id=attempt.chat.id,
                cause=loss.cause,
                lost_tokens=loss.tokens,
            )

    async def _continue_or_begin(
        self,
        attempt: Attempt,
        context: TurnContext,
        request: ModelRequest,
        run: Callable[[ModelRequest], Awaitable[tuple[ModelCall, Answer]]],
    ) -> tuple[ModelCall, Answer]:
        """Go on from what a worker before this one said, if the model can; else answer anew. Anew
        too if the provider refuses to go on: it has not run that request."""
        said = None if is_paused(attempt.history) else continuation(attempt.previous)
        continued = replace(request, continues=said)
        if said is not None and context.choice.provider.can_continue(continued):
            size = utf8_size(said)
            try:
                call, answer = await run(continued)
            except ModelCallError as error:
                if not error.is_refused or not is_continuation_refused(error.classified):
                    raise
                self.env.emit(
                    "continuation_refused",
                    chat_id=attempt.chat.id,
                    provider=context.config.provider,
                    detail=error.classified.error.detail,
                )
            else:
                self.env.emit("answer_continued", chat_id=attempt.chat.id, bytes=size)
                return call, answer
        return await run(request)

    async def _keep_partial(
        self, attempt: Attempt, context: TurnContext, error: ChatError
    ) -> AppliedChange:
        """Fail the turn and keep the partial answer, as an interrupt would."""
        self.spend_guard.on_booked(attempt.chat)
        return await self._fail(attempt, context, error, attempt.unrecorded_usage())

    async def _fail(
        self,
        attempt: Attempt,
        context: TurnContext,
        error: ChatError,
        usage: tuple[UsageEntry, ...],
        partial: PartialMessages | None = None,
    ) -> AppliedChange:
        """Keep what was said at this step: by the last call, in `partial`, if that was discarded
        for the next one, and by a worker that died or released the chat. Answers of calls before
        the last one were discarded."""
        at = utc_text(self.env.clock.now())
        said = attempt.partial_messages(at) or (() if partial is None else partial(at))
        return await self.committer.fail_turn(
            attempt,
            error,
            messages=tuple(map(mark_broken_off, said)),
            usage=usage,
            client_tools=context.client_names,
        )

    async def _retry_or_fail(
        self, attempt: Attempt, context: TurnContext, error: ModelCallError
    ) -> AppliedChange:
        """Another model answers if the chat's has a fallback for this failure. Else a full context
        window is answered by a compaction."""
        switched = await self._fall_back_from(attempt, context, error.classified, error)
        if switched is not None:
            return switched
        setbacks, is_fallback = attempt.chat.setbacks or NO_SETBACKS, context.choice.stands_in_for
        decision = decide_retry(
            error.classified,
            setbacks.failed_calls + 1,
            compactable=is_compactable(attempt.history),
            jitter=self.env.jitter(),
            outage=self._outage(attempt, error),
            is_own_awaited=bool(
                is_fallback and setbacks.fallback and setbacks.fallback.is_temporary
            ),
        )
        match decision:
            case RetryAfter():
                return await self._retry(attempt, error, decision.delay_s)
            case CompactFirst():
                # An attempt of its own, so that viewers see the summary in place of the failure.
                await self._retry(attempt, error, 0.0)
                return await self.compact(attempt, context, None)
            case GiveUp():
                failed = error.classified.error
                return await self._fail(attempt, context, failed, error.usage, error.partial)
            case _:
                assert_never(decision)

    async def replace_unusable(self, attempt: Attempt, failed: ClassifiedFailure) -> AppliedChange:
        """The chat's model cannot be called, because it or its provider is disabled or has no key:
        a fallback answers, or the turn fails."""
        setbacks = attempt.chat.setbacks or NO_SETBACKS
        own = unusable = await self.models.configured(attempt.chat.model_config_id)
        if own is not None and own.id in setbacks.failed_models and setbacks.fallback is not None:
            # The fallback of the row cannot be called either.
            unusable = await self.models.configured(setbacks.fallback.model_config_id)
        if own is not None:
            switched = await self._fall_back(attempt, own, unusable or own, failed)
            if switched is not None:
                return switched
        return await self.committer.fail_turn(attempt, failed.error)

    async def _fall_back_from(
        self,
        attempt: Attempt,
        context: TurnContext,
        failed: ClassifiedFailure,
        error: ModelCallError | None = None,
    ) -> AppliedChange | None:
        own = context.choice.stands_in_for or context.config
        return await self._fall_back(attempt, own, context.config, failed, error)

    async def _fall_back(
        self,
        attempt: Attempt,
        own: ModelConfig,
        failed_model: ModelConfig,
        failed: ClassifiedFailure,
        error: ModelCallError | None = None,
    ) -> AppliedChange | None:
        """Commit that another model makes the next call of this step, which this worker then
        makes. None if there is none for this failure. Without `error` no call was made."""
        chat, setbacks = attempt.chat, attempt.chat.setbacks or NO_SETBACKS
        reason = needs_fallback(failed, setbacks, is_called=error is not None)
        if not own.fallbacks or chat.model_required or reason is None:
            return None
        tokens = (error and error.request_tokens) or measure_fill(attempt.history, None).tokens
        failed_models = (*setbacks.failed_models, failed_model.id)
        wanted = FallbackSearch(
            own=own,
            reason=reason,
            needs=PromptNeeds.of(rows_for_prompt(attempt.history), tokens),
            failed_models=failed_models,
        )
        candidate = await find_fallback(self.models, self.circuits, self.env, chat, wanted)
        if candidate is None:
            return None
        first = setbacks.fallback if setbacks.failed_models else None
        now, name = self.env.clock.now(), candidate.config.name
        switch = ModelSwitch(
            failed_models=failed_models,
            fallback=ChosenFallback(
                model_config_id=candidate.config.id,
                reason=first.reason if first is not None else reason,
                since=now,
                is_temporary=first.is_temporary if first is not None else failed.retryable,
            ),
        )
        retry = RecordRetry(
            fence=Fence.of(chat),
            state=self._retry_state(failed, setbacks.failed_calls + 1, 0.0),
            counted=error is not None,
            usage=() if error is None else error.usage,
            switch=switch,
        )
        applied = await self.committer.commit(attempt, retry)
        self.env.emit(
            "model_fell_back",
            chat_id=chat.id,
            model=failed_model.name,
            fallback=name,
            reason=reason,
            error_kind=failed.kind,
        )
        return applied

    def _outage(self, attempt: Attempt, error: ModelCallError) -> OutageWait:
        return OutageWait(
            limit_s=self.outage_s,
            waited_ms=(attempt.chat.setbacks or NO_SETBACKS).waited_ms,
            is_begun=error.is_begun,
        )

    async def _retry(
        self, attempt: Attempt, error: ModelCallError, delay_s: float
    ) -> AppliedChange:
        """Commit the delay and release the chat: the wait holds no slot, and the next owner goes
        on with the count of failures."""
        failures = (attempt.chat.setbacks or NO_SETBACKS).failed_calls + 1
        state = self._retry_state(error.classified, failures, delay_s)
        retry = RecordRetry(
            fence=Fence.of(attempt.chat),
            state=state,
            keeps_previous=bool(attempt.previous) and not error.has_said,
            usage=error.usage,
            switch=_own_model_next(attempt.chat, delay_s),
        )
        return await self.committer.commit(attempt, retry)

    async def _wait_for_provider(
        self, attempt: Attempt, context: TurnContext, refused: CallRefused
    ) -> AppliedChange:
        """The provider fails for all chats: wait without a call, for a bounded time."""
        setbacks = attempt.chat.setbacks or NO_SETBACKS
        if is_wait_over(refused.cause, setbacks.waited_ms, self.outage_s):
            return await self._fail(attempt, context, refused.cause.error, ())
        delay_s = spread(max(refused.wait_s, MIN_PROVIDER_WAIT_S), self.env.jitter())
        state = self._retry_state(refused.cause, max(setbacks.failed_calls, 1), delay_s)
        retry = RecordRetry(
            fence=Fence.of(attempt.chat),
            state=state,
            counted=False,
            keeps_previous=bool(attempt.previous),
            switch=_own_model_next(attempt.chat, delay_s),
        )
        return await self.committer.commit(attempt, retry)

    def _retry_state(self, failed: ClassifiedFailure, failures: int, delay_s: float) -> RetryState:
        return retry_state(failed, failures, delay_s, self.env.clock.now())


def _own_model_next(chat: Chat, delay_s: float) -> ModelSwitch | None:
    """After a wait the chat's own model is tried first, if another one has taken its place at this
    step; then its fallbacks again."""
    has_switched = chat.setbacks is not None and chat.setbacks.failed_models
    return ModelSwitch() if has_switched and delay_s > 0 else None


def _next_messages(attempt: Attempt, context: TurnContext) -> list[PendingUpdate]:
    """What is stored before the answer: the notice that old results are shortened, first because
    it counts back from itself; that another model answers, or one without the chat's effort; and
    what is new in the instructions. After a pause nothing that the model gets changes: the provider
    continues its answer."""
    history, rules = attempt.history, context.rules
    choice, config = context.choice, context.config
    drafts = [
        replacement_notice(history, choice.replaces, config),
        fallback_notice(history, attempt.chat.fallback, choice.stands_in_for or config, config),
        effort_notice(history, attempt.chat.reasoning_effort, config, choice.efforts),
    ]
    if not is_paused(history):
        fill = measure_fill(history, rules.context_limit)
        cleared = clear_results(history, fill, rules.compaction, rules.compaction_threshold)
        drafts = [cleared, *drafts, next_update(history, context.instructions)]
    found = [draft for draft in drafts if draft is not None]
    return [PendingUpdate.of(draft, attempt.chat, n) for n, draft in enumerate(found)]

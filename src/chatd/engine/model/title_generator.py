"""Generate titles: for a new chat in the background of its first turn, and when a user asks. And
labels of turns, for notifications, by the same models.

A title is not part of history: it is written beside it, and only if the chat still has the title
it had before. `domain.prompt.titles` builds the request and checks the answer. For a new chat this
is best effort: a failure leaves the old title.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, Literal

from msgspec import Struct, structs

from chatd.aio import REQUEST_MARK, BackgroundTasks, RequestMark
from chatd.domain.access.permissions import WORKER
from chatd.domain.answer.answer import Answer, ModelCallRecord, started_call, usage_entry
from chatd.domain.answer.assembler import Assembler
from chatd.domain.chat.messages import Message
from chatd.domain.chat.parts import TextPart
from chatd.domain.chat.row import Chat
from chatd.domain.deployment.spend import SpendRefusal
from chatd.domain.errors import TitleFailed, UsageLimit
from chatd.domain.ids import ChatId
from chatd.domain.model.classify import classify_fault
from chatd.domain.model.failures import ClassifiedFailure, ModelError, with_provider
from chatd.domain.model.fallback import fallback_reason
from chatd.domain.model.protocol import (
    FallbackReason,
    ModelConfig,
    ModelRequest,
    ProviderError,
    ProviderFault,
    StreamFailed,
)
from chatd.domain.model.usage import estimate_input_tokens, expected_input
from chatd.domain.ports import Env, ModelChoice, ModelSource
from chatd.domain.prompt.titles import (
    MAX_EXCERPT_CHARS,
    TITLE_TIMEOUT_S,
    label_request,
    needs_title,
    read_label,
    read_title,
    retitle_request,
    title_input,
    title_request,
    without_temperature,
)
from chatd.domain.text import clip
from chatd.engine.model.call_records import DebugRecorder, UsageWriter
from chatd.engine.model.model_call import call_ids
from chatd.engine.model.model_choice import choose_usable_model
from chatd.engine.model.spend_guard import SpendGuard, SpendRefused
from chatd.store.chat import chats
from chatd.store.database.conn import Conn

AnnounceChat = Callable[[Chat, str], None]
TitleModelChoice = Callable[[ModelChoice], Awaitable[Sequence[ModelChoice]]]

MAX_STARTED_CHATS_KEPT: Final = 1000


async def own_model(choice: ModelChoice) -> Sequence[ModelChoice]:
    """The chat's own model generates its title."""
    return (choice,)


class Words(Struct, frozen=True, kw_only=True):
    """What a model is asked for: how its usage is booked, and which replies are accepted."""

    kind: Literal["title", "summary"]
    read: Callable[[str], str | None]
    timeout_s: float


LABEL_TIMEOUT_S: Final = 10.0
"""Of all models that are tried: the notification waits for it."""
TITLE: Final = Words(kind="title", read=read_title, timeout_s=TITLE_TIMEOUT_S)
LABEL: Final = Words(kind="summary", read=read_label, timeout_s=LABEL_TIMEOUT_S)


class CallRecords(Struct, frozen=True, kw_only=True):
    """Where the calls for titles are recorded."""

    usage: UsageWriter
    debug: DebugRecorder


class TitleGenerator:
    """`title_models` gives the models to try, in order, for a chat with the given model."""

    def __init__(
        self,
        conn: Conn,
        env: Env,
        background_tasks: BackgroundTasks,
        spend_guard: SpendGuard,
        *,
        models: ModelSource,
        records: CallRecords,
        announce: AnnounceChat,
        title_models: TitleModelChoice = own_model,
    ) -> None:
        self._conn = conn
        self._env = env
        self._background_tasks = background_tasks
        self._spend_guard = spend_guard
        self._models = models
        self._usage_writer = records.usage
        self._debug = records.debug
        self._announce = announce
        self._title_models = title_models
        self._started: dict[ChatId, None] = {}
        self._unusable: set[tuple[str, str]] = set()

    def start_if_needed(self, chat: Chat, history: Sequence[Message], choice: ModelChoice) -> None:
        """Never waits. A subagent gets its title from the chat that starts it. One try per chat: a
        failing provider is not asked again at every retry of the answer."""
        first = next((row for row in history if row.starts_turn), None)
        text = "" if first is None else title_input(first.content, {})
        is_needed = chat.is_root and needs_title(history, chat.title, text)
        if not is_needed or chat.id in self._started:
            return
        if self._background_tasks.submit("title", lambda: self._generate(chat, text, choice)):
            self._started[chat.id] = None
            if len(self._started) > MAX_STARTED_CHATS_KEPT:
                del self._started[next(iter(self._started))]

    async def _generate(self, chat: Chat, text: str, choice: ModelChoice) -> None:
        title, _refusal = await self._ask(
            chat, choice, lambda model: title_request(model, text), TITLE
        )
        if title is not None:
            await self._set_title(chat, title)

    async def suggest(self, chat: Chat, excerpt: str) -> str:
        """A title for this excerpt of the chat. Raises UsageLimit, TitleFailed."""
        try:
            choice = await choose_usable_model(self._models, chat)
        except (ModelError, ProviderError) as error:
            raise TitleFailed(f"No model can name the chat: {error.message}") from error
        title, refusal = await self._ask(
            chat, choice, lambda model: retitle_request(model, excerpt), TITLE
        )
        if title is not None:
            return title
        if refusal is not None:
            raise UsageLimit(
                refusal.message,
                spent_micros=refusal.spent_micros,
                limit_micros=refusal.limit_micros,
                resets_at=refusal.resets_at,
            )
        raise TitleFailed("The model gave no usable title. Try again, or set a title yourself.")

    async def label_turn(self, chat_id: ChatId, answer: str) -> str | None:
        """In a few words what this answer, the last one of the chat, says or needs. None: no model
        said it in time, or may be called."""
        chat = await chats.get(self._conn, WORKER, chat_id)
        if chat is None:
            return None
        try:
            choice = await choose_usable_model(self._models, chat)
        except (ModelError, ProviderError):
            return None
        excerpt = clip(answer, MAX_EXCERPT_CHARS)
        label, _refusal = await self._ask(
            chat, choice, lambda model: label_request(model, chat.title, excerpt), LABEL
        )
        return label

    async def _ask(
        self,
        chat: Chat,
        choice: ModelChoice,
        build_request: Callable[[str], ModelRequest],
        words: Words,
    ) -> tuple[str | None, SpendRefusal | None]:
        """Try the models in turn, within one time limit for all of them. Returns the words, or why
        the last refused call was not made."""
        refusal: SpendRefusal | None = None
        failed: ClassifiedFailure | None = None
        models = list(await self._title_models(choice))
        # An administrator may have chosen another model, because no other one may read the chat.
        has_own = any(model is choice for model in models) and not chat.model_required
        own = choice.stands_in_for or choice.config
        began = asyncio.get_running_loop().time()
        # A provider that does not answer leaves time for the next one.
        deadline = began + words.timeout_s / (2 if has_own and own.fallbacks else 1)
        while models:
            model = models.pop(0)
            if (model.config.provider, model.config.model) not in self._unusable:
                request = structs.replace(build_request(model.config.model), ids=call_ids(chat))
                try:
                    title, failed = await self._call(chat, model, request, words, deadline)
                except SpendRefused as refused:
                    refusal = refused.refusal
                else:
                    if title is not None:
                        return title, None
            if not models and has_own and failed is not None:
                has_own, deadline = False, began + words.timeout_s
                models = await self._fallbacks(own, fallback_reason(failed), chat)
        return None, refusal

    async def _fallbacks(
        self, own: ModelConfig, reason: FallbackReason | None, chat: Chat
    ) -> list[ModelChoice]:
        found: list[ModelChoice] = []
        for fallback in own.fallbacks:
            if reason in fallback.on:
                with suppress(ModelError):
                    found.append(await self._models.choose_named(fallback.model, chat.owner_id))
        return found

    async def _set_title(self, chat: Chat, title: str) -> None:
        updated = await chats.set_title(
            self._conn, WORKER, chat.id, expected=chat.title, title=title
        )
        if updated is not None:
            self._announce(updated, "title")

    async def _call(
        self, chat: Chat, model: ModelChoice, request: ModelRequest, words: Words, deadline: float
    ) -> tuple[str | None, ClassifiedFailure | None]:
        """The title, or how the call failed, or neither if the answer is none."""
        answer, fault = await self._stream(chat, model, request, words.kind, deadline)
        if fault is not None and (plainer := without_temperature(request, fault)) is not None:
            answer, fault = await self._stream(chat, model, plainer, words.kind, deadline)
        provider = model.config.provider
        failed = None if fault is None else with_provider(classify_fault(fault), provider)
        if failed is not None and failed.kind == "config":
            # The provider does not have this model: do not ask again for every new chat.
            self._unusable.add((model.config.provider, model.config.model))
        if answer is None:
            self._env.emit("title_failed", chat_id=chat.id, provider=model.config.provider)
            return None, failed
        text = "".join(part.text for part in answer.content if isinstance(part, TextPart))
        return (words.read(text) if failed is None else None), failed

    async def _stream(
        self,
        chat: Chat,
        model: ModelChoice,
        request: ModelRequest,
        kind: Literal["title", "summary"],
        deadline: float,
    ) -> tuple[Answer | None, ProviderFault | None]:
        """No answer: the call did not reach the provider and has no usage. Usage is recorded on
        every way out, also if a shutdown cancels the call."""
        rough = estimate_input_tokens(request)
        assembler = Assembler(
            expected=expected_input(self._spend_guard.estimate_input(model.config, rough), None)
        )
        call_id = self._env.new_id()
        record = ModelCallRecord(config=model.config, id=call_id)
        call = started_call(kind, call_id, model.config, assembler.usage)
        is_charged, is_opened, fault = False, False, None
        mark = RequestMark(lambda: self._spend_guard.mark_sent(chat, call))
        REQUEST_MARK.set(mark)
        is_recorded = kind == "title" and await self._debug.is_on(chat.owner_id)
        debug = self._debug.begin(chat, "title", model.config, request) if is_recorded else None
        try:
            async with asyncio.timeout_at(deadline):
                await self._spend_guard.open(chat, call, model)
                is_charged = True
            async with asyncio.timeout_at(deadline), model.provider.stream(request) as events:
                is_opened = True
                await mark.send()  # For a provider that does not tell when it sends.
                async for event in events:
                    if isinstance(event, StreamFailed):
                        fault = event.fault
                        break
                    assembler.feed(event)
        except ProviderError as failed:
            is_charged, fault = is_opened, failed.fault
        except TimeoutError:
            is_charged = is_opened
            fault = ProviderFault(message="no title in time", transport="timeout")
        finally:
            answer = assembler.finished()
            if debug is not None:
                failure = None if fault is None else classify_fault(fault).error
                self._debug.end(debug, answer, failure)
            if is_charged and mark.is_sent is not False:
                is_ok = answer.finished is not None
                entry = usage_entry(kind, record, answer.usage, ok=is_ok)
                self._usage_writer.record(chat, (entry,))
            else:
                self._spend_guard.discard(call)
        return (answer if is_opened else None), fault

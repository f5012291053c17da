"""The draft of the open chat on the screen: the text box with what stands around it."""

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Final, Self, cast

from msgspec.structs import replace
from textual import on
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import TextArea
from textual.worker import Worker

from chatd.client.choice_resources import ModelChoice
from chatd.client.connection import FollowedChat
from chatd.domain.chat.states import PublicStatus
from chatd.domain.ids import ChatId
from chatd.domain.model.protocol import Effort
from chatd.terminal.attachments.draft_files import DraftFiles
from chatd.terminal.composer.behaviours import BusyChoice, behaviour_of
from chatd.terminal.composer.chat_facts import ChatFacts
from chatd.terminal.composer.commands import BUSY_STATUSES
from chatd.terminal.composer.completion import Completion
from chatd.terminal.composer.delivery import Delivery
from chatd.terminal.composer.drafts import (
    NEW_CHAT,
    DraftStore,
    WrittenDraft,
    draft_key,
    state_directory,
)
from chatd.terminal.composer.hint_line import HintFacts, HintLine, context_text, cost_text
from chatd.terminal.composer.host import Work
from chatd.terminal.composer.notice_lines import (
    Notice,
    NoticeLines,
    attachment_notice,
    unsent_notices,
)
from chatd.terminal.composer.recall import Recall
from chatd.terminal.composer.sending import Edited, EditedMessage, EditedQueued
from chatd.terminal.composer.terminal_keys import read_alt_enter
from chatd.terminal.composer.text_box import TextBox
from chatd.terminal.messages import Severity, ShowNotice
from chatd.terminal.pickers.model_texts import context_limit_of, effort_for, pick_model
from chatd.terminal.session import Session, app_of, session_of

SAVE_AFTER_S: Final = 0.5
"""A draft is written to disk at a pause in typing."""


class DraftView(Widget):
    """The draft of the open chat, its files, and what it is sent with. Its parts do the work:
    `Completion` the menu, `Recall` the earlier prompts, `Delivery` the sending."""

    def __init__(self) -> None:
        super().__init__()
        self.chat: FollowedChat | None = None
        self.busy = BusyChoice()
        self.edited: Edited | None = None
        self._sending: Worker[None] | None = None
        self._sent_key = ""
        self._save_timer: Timer | None = None
        self._stop_outbox: Callable[[], None] = lambda: None

    def on_mount(self) -> None:
        read_alt_enter()
        self._stop_outbox = self.session.outbox.on_change(self._on_outbox)
        self.facts.read_models()
        self._show_draft()

    def on_resize(self) -> None:
        """The box grows to a third of the screen, in whole lines."""
        self._box.styles.max_height = max(3, app_of(self).size.height // 3)

    def on_unmount(self) -> None:
        self._stop_outbox()
        self.facts.close()
        self._store.save()

    # Its parts, which need the session of the app

    @property
    def session(self) -> Session:
        return session_of(self)

    @property
    def facts(self) -> ChatFacts:
        return self._facts

    @property
    def files(self) -> DraftFiles:
        return self._files

    @cached_property
    def _facts(self) -> ChatFacts:
        return ChatFacts(self, self.session, self.refresh_facts)

    @cached_property
    def _files(self) -> DraftFiles:
        session = self.session
        return DraftFiles(self, session.api, session.machine, self._store, self.refresh_facts)

    @cached_property
    def _store(self) -> DraftStore:
        root, url = self.session.machine.state_directory, self.session.server.url
        return DraftStore(None if root is None else state_directory(root, url))

    @cached_property
    def _completion(self) -> Completion:
        return Completion(self, self.session.machine, self._status, self.refresh_facts)

    @cached_property
    def _recall(self) -> Recall:
        return Recall(self)

    @cached_property
    def _delivery(self) -> Delivery:
        return Delivery(self)

    def _status(self) -> PublicStatus | None:
        return None if self.chat is None else self.chat.shown.status

    @property
    def _box(self) -> TextBox:
        return self.query_one(TextBox)

    # The open chat

    @property
    def chat_id(self) -> ChatId | None:
        return None if self.chat is None else self.chat.shown.chat_id

    @property
    def is_busy(self) -> bool:
        return self._status() in BUSY_STATUSES

    @property
    def is_plan(self) -> bool:
        if self.chat_id is None:
            return self.draft.is_plan
        return self.facts.chat is not None and self.facts.chat.mode == "plan"

    @property
    def model(self) -> ModelChoice | None:
        chat = self.facts.chat
        last = None if chat is None else chat.last_model_config_id
        return pick_model(self.facts.models, self.draft.model_id, last)

    @property
    def effort(self) -> Effort | None:
        chat = self.facts.chat
        known = None if chat is None else chat.reasoning_effort
        return effort_for(self.model, self.draft.effort or known)

    def show(self, chat: FollowedChat | None) -> None:
        before, self.chat = self.chat_id, chat
        if before != self.chat_id:
            self._open_draft()
        elif isinstance(self.edited, EditedQueued) and chat is not None:
            queued = {one.id for one in chat.shown.queue}
            if self.edited.queue_id not in queued and not self._is_sending:
                self._delivery.keep_late_edit(self._box.text)
        if chat is not None:
            self.facts.show_answer(_last_answer(chat))
        self.refresh_facts()

    def _open_draft(self) -> None:
        """Of another chat. An edit that was not saved ends."""
        self._store.save()
        self.edited = None
        self.busy = BusyChoice(kept=self.busy.kept)
        self._recall.forget()
        self.facts.open(self.chat_id)
        self._show_draft()

    # The draft

    @property
    def key(self) -> str:
        key = draft_key(self.chat_id)
        return key if self.edited is None else f"{key}.edit"

    @property
    def draft(self) -> WrittenDraft:
        return self._store.read(self.key)

    def draft_at(self, key: str) -> WrittenDraft:
        return self._store.read(key)

    def change_draft(
        self, change: Callable[[WrittenDraft], WrittenDraft], key: str | None = None
    ) -> None:
        """Of the draft that is shown, or of the one that was when somebody began to choose."""
        self._store.change(self.key if key is None else key, change)
        self.refresh_facts()

    def take_sent(self, key: str, sent: str) -> None:
        """Removes what goes out. What was typed after it stays: it is the next draft."""
        text = self._store.read(key).text
        rest = text.removeprefix(sent) if text.startswith(sent) else ""
        self._store.clear(key)
        self.put_text(key, rest)

    def put_back(self, key: str, draft: WrittenDraft) -> None:
        """What was not accepted comes before what was typed since."""
        rest = self._store.read(key).text
        self._store.change(key, lambda _: draft)
        self.put_text(key, f"{draft.text}\n\n{rest}" if rest.strip() else draft.text)

    def carry_draft(self, chat_id: ChatId) -> None:
        """What was typed while the chat was being created belongs to it."""
        rest = self._store.read(NEW_CHAT).text
        if rest.strip():
            self._store.clear(NEW_CHAT)
            self.put_text(draft_key(chat_id), rest)

    def put_text(self, key: str, text: str) -> None:
        self._store.change(key, lambda was: replace(was, text=text))
        self._recall.forget()
        if key == self.key:
            self._show_draft()

    def write(self, text: str) -> None:
        self._box.write(text)

    def _show_draft(self) -> None:
        self._box.write(self.draft.text)
        self._completion.close()
        self.refresh_facts()

    @on(TextArea.Changed)
    def _on_text(self, event: TextArea.Changed) -> None:
        event.stop()
        text = self._box.text
        if text != self.draft.text:
            self._store.change(self.key, lambda was: replace(was, text=text))
            self._save_later()
        self.files.drop_unnamed(self.key, text)
        self._completion.update()
        self.refresh_facts()

    @on(TextArea.SelectionChanged)
    def _on_cursor(self, event: TextArea.SelectionChanged) -> None:
        event.stop()
        self._completion.update()

    def _save_later(self) -> None:
        if self._save_timer is None:
            self._save_timer = self.set_timer(SAVE_AFTER_S, self._save)

    def _save(self) -> None:
        self._save_timer = None
        self._store.save()

    # What is shown

    def focus(self, scroll_visible: bool = True, **_: object) -> Self:  # noqa: FBT001, FBT002
        self._box.focus(scroll_visible)
        return self

    @property
    def _is_sending(self) -> bool:
        """The draft that is shown; that of another chat may be on its way too."""
        is_going = self._sending is not None and not self._sending.is_finished
        return is_going and self._sent_key == self.key

    def _note(self) -> str:
        if self._is_sending:
            return self._delivery.waiting_text()
        return "Enter or Tab takes it · Esc closes" if self._completion.is_open else ""

    @on(Worker.StateChanged)
    def _on_worker(self, event: Worker.StateChanged) -> None:
        worker = cast("object", event.worker)  # pyright: ignore[reportUnknownMemberType]
        if worker is self._sending:
            self.refresh_facts()

    def start(self, work: Work, group: str) -> Worker[None]:
        return self.run_worker(work, group=group, exclusive=True)

    def stop_editing(self) -> None:
        """The draft that was there before is shown again."""
        if self.edited is None:
            return
        self._store.clear(self.key)
        self.edited = None
        self._show_draft()

    def say(self, text: str, severity: Severity = "information") -> None:
        self.post_message(ShowNotice(text, severity))

    def _on_outbox(self) -> None:
        """In the outbox's task."""
        self.call_later(self.refresh_facts)

    def refresh_facts(self) -> None:
        if not self.is_mounted or not self.query(HintLine):
            return
        self.query_one(NoticeLines).notices = tuple(self._notices())
        self.query_one(HintLine).facts = self._hints()
        self._box.placeholder = self._placeholder()

    def _notices(self) -> Iterator[Notice]:
        if isinstance(self.edited, EditedMessage):
            yield Notice(
                "note", "", "Editing a sent message: what came after it, and the queue, go."
            )
        elif self.edited is not None:
            yield Notice("note", "", "Editing a queued message. Enter saves it, Esc leaves it.")
        for one in self.draft.attachments:
            yield attachment_notice(one)
        if self.chat is not None:
            yield from unsent_notices(self.chat.pending, is_busy=self.is_busy)

    def _placeholder(self) -> str:
        chat = self.facts.chat
        if self.chat_id is None:
            return "Describe a task. / for commands, @ for files"
        if chat is not None and chat.archived:
            return "This chat is archived. /unarchive takes it out"
        if chat is not None and chat.is_owner is False:
            return "This chat is shared with you: you can read it"
        if self.chat is not None and self.chat.shown.status == "requires_action":
            return "It waits for your answer above (F3). A message here waits too"
        return "Add a message while it works" if self.is_busy else "Write a message"

    def _hints(self) -> HintFacts:
        shown = None if self.chat is None else self.chat.shown
        limit = context_limit_of(self.model)
        is_busy = self.is_busy and self.edited is None
        return HintFacts(
            model=self.model,
            effort=self.effort,
            is_plan=self.is_plan,
            place=self.draft.workspace_name,
            behaviour=behaviour_of(self.busy.value) if is_busy else None,
            is_once=self.busy.once is not None,
            is_written=not self.draft.is_empty,
            note=self._note(),
            is_warning=self._is_sending,
            context="" if shown is None else context_text(shown.messages, limit),
            cost=cost_text(self.facts.cost),
        )


def _last_answer(chat: FollowedChat) -> int | None:
    answers = (one.id for one in reversed(chat.shown.messages) if one.role == "assistant")
    return next(answers, None)

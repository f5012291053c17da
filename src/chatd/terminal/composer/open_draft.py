"""`OpenDraft`: the draft of the open chat, its files, and what it is sent with."""

from collections.abc import Callable, Coroutine
from functools import partial

from msgspec import Struct
from msgspec.structs import replace
from textual.message import Message
from textual.widget import Widget
from textual.worker import Worker

from chatd.client.connection import FollowedChat
from chatd.client.drafts import InputPart
from chatd.client.resources import ModelChoice
from chatd.domain.chat.messages import PublicMessage, PublicQueuedMessage
from chatd.domain.chat.states import PublicStatus
from chatd.domain.ids import ChatId, MessageId, QueueId
from chatd.domain.model.protocol import Effort
from chatd.terminal.composer.chat_facts import ChatFacts
from chatd.terminal.composer.commands import BUSY_STATUSES, BusyChoice, behaviour_of, find_behaviour
from chatd.terminal.composer.draft_files import DraftFiles
from chatd.terminal.composer.drafts import (
    NEW_CHAT,
    DraftStore,
    WrittenDraft,
    draft_key,
    state_directory,
)
from chatd.terminal.composer.local_files import mentions_of, write_mention
from chatd.terminal.composer.message_content import read_content
from chatd.terminal.composer.model_texts import effort_for, pick_model
from chatd.terminal.composer.text_box import TextBox
from chatd.terminal.messages import Severity, ShowNotice
from chatd.terminal.screens.changes_screen import ChangesScreen, read_scope
from chatd.terminal.session import Session, app_of

Work = Callable[[], Coroutine[None, None, None]]
"""An async function; textual calls it when the worker starts, which may be never."""


class EditedMessage(Struct, frozen=True, kw_only=True):
    """A message of the history whose new text is being written; `kept` are its other parts."""

    message_id: MessageId
    kept: tuple[InputPart, ...] = ()


class EditedQueued(Struct, frozen=True, kw_only=True):
    """The same for a message of the queue."""

    queue_id: QueueId
    kept: tuple[InputPart, ...] = ()


Edited = EditedMessage | EditedQueued


class OpenDraft:
    """`host` is the composer: it runs requests and passes messages on. `show` shows another draft,
    `on_change` what has changed around it. `key` names the draft that is shown; `edited` is what it
    will replace."""

    def __init__(
        self,
        host: Widget,
        session: Session,
        show: Callable[[], None],
        on_change: Callable[[], None],
    ) -> None:
        self._host = host
        self._show = show
        self._on_change = on_change
        self.session = session
        self.chat: FollowedChat | None = None
        self.busy = BusyChoice()
        self.edited: Edited | None = None
        root = session.machine.state_directory
        self.store = DraftStore(None if root is None else state_directory(root, session.server.url))
        self.facts = ChatFacts(host, session, on_change)
        self.files = DraftFiles(host, session.api, session.machine, self.store, on_change)

    def close(self) -> None:
        self.facts.close()
        self.store.save()

    @property
    def box(self) -> TextBox:
        return self._host.query_one(TextBox)

    # The chat

    @property
    def status(self) -> PublicStatus | None:
        return None if self.chat is None else self.chat.shown.status

    @property
    def chat_id(self) -> ChatId | None:
        return None if self.chat is None else self.chat.shown.chat_id

    @property
    def is_busy(self) -> bool:
        return self.status in BUSY_STATUSES

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

    def open(self) -> None:
        """Another chat is open. An edit that was not saved ends."""
        self.store.save()
        self.edited = None
        self.busy = BusyChoice(kept=self.busy.kept)
        self.facts.open(self.chat_id)
        self._show()

    # What is written

    @property
    def key(self) -> str:
        key = draft_key(self.chat_id)
        return key if self.edited is None else f"{key}.edit"

    @property
    def draft(self) -> WrittenDraft:
        return self.store.read(self.key)

    def draft_at(self, key: str) -> WrittenDraft:
        return self.store.read(key)

    def change_draft(
        self, change: Callable[[WrittenDraft], WrittenDraft], key: str | None = None
    ) -> None:
        """Of the draft that is shown, or of the one that was when somebody began to choose."""
        self.store.change(self.key if key is None else key, change)
        self._on_change()

    def take_sent(self, key: str, sent: str) -> None:
        """Removes what goes out. What was typed after it stays: it is the next draft."""
        text = self.store.read(key).text
        rest = text.removeprefix(sent) if text.startswith(sent) else ""
        self.store.clear(key)
        self.put_text(key, rest)

    def put_back(self, key: str, draft: WrittenDraft) -> None:
        """What was not accepted comes before what was typed since."""
        rest = self.store.read(key).text
        self.store.change(key, lambda _: draft)
        self.put_text(key, f"{draft.text}\n\n{rest}" if rest.strip() else draft.text)

    def carry_draft(self, chat_id: ChatId) -> None:
        """What was typed while the chat was being created belongs to it."""
        rest = self.store.read(NEW_CHAT).text
        if rest.strip():
            self.store.clear(NEW_CHAT)
            self.put_text(draft_key(chat_id), rest)

    def put_text(self, key: str, text: str) -> None:
        self.store.change(key, lambda was: replace(was, text=text))
        if key == self.key:
            self._show()

    def write(self, text: str) -> None:
        self.box.write(text)

    # Editing a sent or a queued message

    def edit_last(self) -> None:
        messages = () if self.chat is None else self.chat.shown.messages
        message = next((one for one in reversed(messages) if one.role == "user"), None)
        if message is None:
            self.say("There is no message to edit.")
            return
        self.edit_message(message)

    def edit_message(self, message: PublicMessage) -> None:
        content = read_content(message.content)
        self._edit(EditedMessage(message_id=message.id, kept=content.kept), content.text)

    def edit_queued(self, message: PublicQueuedMessage) -> None:
        content = read_content(message.content)
        self._edit(EditedQueued(queue_id=message.id, kept=content.kept), content.text)

    def _edit(self, edited: Edited, text: str) -> None:
        self.stop_editing()
        self.edited = edited
        self.store.clear(self.key)
        self._show()
        self.write(text)
        self.box.focus()

    # What keys and commands ask for

    def keep_busy(self, word: str) -> None:
        found = find_behaviour(word)
        self.busy = self.busy.cycled() if found is None else self.busy.with_kept(found.value)
        chosen = behaviour_of(self.busy.value)
        self.say(f"While the chat works a message {chosen.verb}: {chosen.effect}.")
        self._on_change()

    def attach_path(self, path: str) -> None:
        word = write_mention(path)
        self.box.insert(f"{word} ")
        for mention in mentions_of(word):
            self.files.attach(self.key, mention)

    def go_to_queue(self) -> None:
        if self.chat is None or not self.chat.shown.queue:
            self.say("The queue is empty.")
            return
        self._host.screen.query_one("QueueView").focus()

    def show_changes(self, scope: str) -> None:
        assert self.chat_id is not None
        app_of(self._host).push_screen(ChangesScreen(self.chat_id, read_scope(scope)))

    def leave(self) -> None:
        self._host.run_worker(partial(app_of(self._host).run_action, "screen.detach"))

    def start(self, work: Work, group: str) -> Worker[None]:
        return self._host.run_worker(work, group=group, exclusive=True)

    def stop_editing(self) -> None:
        """The draft that was there before is shown again."""
        if self.edited is None:
            return
        self.store.clear(self.key)
        self.edited = None
        self._show()

    def say(self, text: str, severity: Severity = "information") -> None:
        self._host.post_message(ShowNotice(text, severity))

    def post_message(self, message: Message) -> None:
        self._host.post_message(message)

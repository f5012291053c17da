"""`OpenDraft`: the draft of the open chat, its files, and what it is sent with; what is read of the
chat besides its messages (`ChatFacts`), and earlier prompts for the arrow keys (`Recall`)."""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace
from textual.events import Paste
from textual.message import Message
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.worker import Worker

from chatd.client.connection import FollowedChat
from chatd.client.drafts import InputPart
from chatd.client.errors import ApiError, ServerUnreachable
from chatd.client.frames import ChatChanged, ListEvent, ListReady
from chatd.client.resources import Chat, ChatCost, ModelChoice, Project
from chatd.domain.chat.messages import PublicMessage, PublicQueuedMessage
from chatd.domain.chat.states import PublicStatus
from chatd.domain.ids import ChatId, MessageId, ProjectId, QueueId
from chatd.domain.model.protocol import Effort
from chatd.terminal.clipboard import (
    Clipboard,
    ClipboardFailed,
    picture_word,
    read_clipboard,
)
from chatd.terminal.composer.commands import BUSY_STATUSES, BusyChoice, behaviour_of, find_behaviour
from chatd.terminal.composer.composer_lines import (
    STATUS_WORDS,
    keep_status,
    kept_status,
    read_status_words,
)
from chatd.terminal.composer.drafts import (
    NEW_CHAT,
    DraftFiles,
    DraftStore,
    WrittenDraft,
    draft_key,
    state_directory,
)
from chatd.terminal.composer.local_files import mentions_of, write_mention
from chatd.terminal.composer.message_content import read_content
from chatd.terminal.composer.model_texts import effort_for, pick_model
from chatd.terminal.composer.text_box import TextBox
from chatd.terminal.dialogs import Pick, Picker
from chatd.terminal.messages import Severity, ShowNotice
from chatd.terminal.safe_text import safe_text
from chatd.terminal.screens.changes_screen import ChangesScreen, read_scope
from chatd.terminal.session import Session, app_of

MAX_LISTED_MODELS: Final = 200
T = TypeVar("T")


class ChatFacts:
    """Mode, model and cost of the chat, and the models to choose from. Reads again when
    the chat has changed; `host` runs the requests and is told."""

    def __init__(self, host: Widget, session: Session, on_change: Callable[[], None]) -> None:
        self._host = host
        self._session = session
        self._on_change = on_change
        self._chat_id: ChatId | None = None
        self._answer: int | None = None
        self.chat: Chat | None = None
        self.cost: ChatCost | None = None
        self.models: tuple[ModelChoice, ...] = ()
        self.wants_project = False
        self._project: Project | None = None
        self._stop = session.connection.follow_list(self._on_list)

    def close(self) -> None:
        self._stop()

    def open(self, chat_id: ChatId | None) -> None:
        self._chat_id, self.chat, self.cost, self._answer = chat_id, None, None, None
        self.read_chat()

    @property
    def project_name(self) -> str:
        """Empty while it is not known."""
        known, chat = self._project, self.chat
        is_known = known is not None and chat is not None and known.id == chat.project_id
        return known.name if known is not None and is_known else ""

    def show_answer(self, message_id: int | None) -> None:
        """The cost changes with each answer, the mode may with each message."""
        if message_id != self._answer and self._chat_id is not None:
            self._answer = message_id
            self._read("cost", self._read_cost)
            self.read_chat()

    def read_chat(self) -> None:
        if self._chat_id is not None:
            self._read("chat", self._read_chat)

    def read_models(self) -> None:
        self._read("models", self.load_models)

    async def load_models(self) -> tuple[ModelChoice, ...]:
        """Raises ApiError and ServerUnreachable."""
        page = await self._session.api.list_models(include_disabled=True, limit=MAX_LISTED_MODELS)
        self.models = page.items
        self._on_change()
        return page.items

    def _read(self, name: str, work: Callable[[], Awaitable[object]]) -> None:
        """What cannot be read stays as it was: the status line says that the server is
        unreachable."""

        async def read() -> None:
            try:
                await work()
            except (ApiError, ServerUnreachable):
                return

        self._host.run_worker(read, group=f"facts-{name}", exclusive=True)

    async def _read_chat(self) -> None:
        if self._chat_id is not None:
            self._show_chat(await self._session.api.get_chat(self._chat_id))

    async def _read_cost(self) -> None:
        if (chat_id := self._chat_id) is None:
            return
        found = await self._session.api.get_chat_cost(chat_id)
        if chat_id == self._chat_id:
            self.cost = found
            self._on_change()

    async def _read_project(self, project_id: ProjectId) -> None:
        self._project = await self._session.api.get_project(project_id)
        self._on_change()

    def _on_list(self, event: ListEvent) -> None:
        """Called in the connection's task: textual starts work only in a task of the app."""
        self._host.call_later(self._show_event, event)

    def _show_event(self, event: ListEvent) -> None:
        match event:
            case ListReady():
                self.read_chat()
                self.read_models()
            case ChatChanged(chat=chat):
                self._show_chat(chat)
            case _:
                return

    def _show_chat(self, chat: Chat) -> None:
        is_newer = self.chat is None or chat.updated_at >= self.chat.updated_at
        if chat.id == self._chat_id and is_newer:
            self.chat = chat
            if self.wants_project and chat.project_id is not None and not self.project_name:
                self._read("project", partial(self._read_project, chat.project_id))
            self._on_change()


Work = Callable[[], Coroutine[None, None, None]]
"""An async function; textual calls it when the worker starts, which may be never."""


class EditedMessage(Struct, frozen=True, kw_only=True):
    """A message of the history whose new text is being written; `kept` are its other parts."""

    message_id: MessageId
    kept: tuple[InputPart, ...] = ()


class EditedQueued(Struct, frozen=True, kw_only=True):
    """The same for a queued message."""

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
        machine = session.machine
        root, place = machine.state_directory, machine.workspace_id
        self.store = DraftStore(
            None if root is None else state_directory(root, session.server.url, place),
            WrittenDraft(workspace_id=place, workspace_name=machine.workspace_name),
        )
        self.status_words = kept_status(root, machine.program_env)
        self.facts = ChatFacts(host, session, on_change)
        self.facts.wants_project = "project" in self.status_words
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
        """Open another chat's draft. An edit that was not saved ends."""
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
        """Remove what is sent. What was typed after it stays: it is the next draft."""
        text = self.store.read(key).text
        rest = text.removeprefix(sent) if text.startswith(sent) else ""
        self.store.clear(key)
        self.put_text(key, rest)

    def put_back(self, key: str, draft: WrittenDraft) -> None:
        """Put back what was not accepted, before what was typed since."""
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

    async def paste(self) -> None:
        """A picture of the clipboard becomes a file of the draft, its text a part of it."""
        key, app = self.key, app_of(self._host)
        try:
            found = await read_clipboard(self.session.machine.program_env)
        except ClipboardFailed as error:
            if not app.clipboard:
                self.say(str(error), "warning")
                return
            # What was copied in this terminal.
            found = Clipboard(text=app.clipboard)
        if key != self.key:
            self.say("Another chat is open now: nothing was pasted.")
        elif found.picture:
            word = picture_word(self.box.text)
            self.box.insert(f"{word} ")
            name = f"{word[1:-1].lower().replace(' ', '-')}.png"
            self.files.attach_bytes(key, word, name, "image/png", found.picture)
        elif found.text:
            self.box.post_message(Paste(found.text))
        else:
            self.say("The clipboard has neither a picture nor text.")

    def copy(self, text: str) -> None:
        app_of(self._host).copy_to_clipboard(safe_text(text))

    def choose_status(self, text: str) -> None:
        """What the line below the text box shows, from now on."""
        words = read_status_words(text)
        if words is None or not text:
            shown = " ".join(self.status_words)
            known = ", ".join(STATUS_WORDS)
            self.say(f"It shows: {shown}. /statusline with words of: {known}; or default.")
            return
        self.status_words = words
        keep_status(self.session.machine.state_directory, words)
        self.facts.wants_project = "project" in words
        self.facts.read_chat()
        self._on_change()

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

    async def ask(self, screen: ModalScreen[T]) -> T:
        """Called in a worker, because it waits for the answer."""
        return await app_of(self._host).push_screen_wait(screen)

    def start(self, work: Work, group: str) -> Worker[None]:
        return self._host.run_worker(work, group=group, exclusive=True)

    def stop_editing(self) -> None:
        """Show the draft again that was there before."""
        if self.edited is None:
            return
        self.store.clear(self.key)
        self.edited = None
        self._show()

    def say(self, text: str, severity: Severity = "information") -> None:
        self._host.post_message(ShowNotice(text, severity))

    def post_message(self, message: Message) -> None:
        self._host.post_message(message)


MAX_PROMPTS: Final = 50
MAX_SEARCHED_PROMPTS: Final = 1000
"""How many of the user's newest prompts, over all chats, Ctrl-R searches."""


class PromptHistory(Struct, frozen=True, kw_only=True):
    """`prompts` are newest first. `place` is -1 outside the history; `draft` is the text that was
    being written, which comes back below the newest prompt."""

    prompts: tuple[str, ...] = ()
    place: int = -1
    draft: str = ""

    @property
    def text(self) -> str:
        return self.draft if self.place < 0 else self.prompts[self.place]

    def is_shown(self, text: str) -> bool:
        """Whether the box still has the prompt as it was: the arrows then continue in the
        history."""
        return self.place >= 0 and text == self.text

    def back(self, written: str) -> "PromptHistory":
        """One prompt older; the oldest stays. Skips a prompt that equals what is written."""
        if not self.is_shown(written):
            return self._enter(written)
        return replace(self, place=min(self.place + 1, len(self.prompts) - 1))

    def forward(self, written: str) -> "PromptHistory":
        if not self.is_shown(written):
            return self
        return replace(self, place=self.place - 1)

    def _enter(self, written: str) -> "PromptHistory":
        is_same = bool(self.prompts) and self.prompts[0] == written
        first = 1 if is_same else 0
        if first >= len(self.prompts):
            return replace(self, place=-1, draft=written)
        return replace(self, place=first, draft=written)


def make_history(prompts: Sequence[str]) -> PromptHistory:
    return PromptHistory(prompts=tuple(dict.fromkeys(one for one in prompts if one.strip())))


class Recall:
    """Earlier prompts, read from the server when they are first asked for. Of one draft at a time;
    `forget` when another is shown or a message was sent."""

    def __init__(self, opened: OpenDraft) -> None:
        self._opened = opened
        self._history: PromptHistory | None = None
        self._cleared: dict[str, str] = {}
        """The draft of each chat that was cleared last, until the terminal ends."""

    def forget(self) -> None:
        self._history = None

    def keep_cleared(self, text: str) -> None:
        self._history = None
        self._cleared.pop(self._opened.key, None)
        self._cleared[self._opened.key] = text
        while len(self._cleared) > MAX_PROMPTS:
            del self._cleared[next(iter(self._cleared))]

    async def search(self, text: str) -> None:
        """Ctrl-R. The draft comes back by the arrow down."""
        key, opened = self._opened.key, self._opened
        try:
            found = await opened.session.api.list_prompts().items(MAX_SEARCHED_PROMPTS)
        except (ApiError, ServerUnreachable) as error:
            opened.say(f"The earlier prompts were not read. {error.message}", "warning")
            return
        prompts = make_history([safe_text(one.text) for one in found]).prompts
        if not prompts:
            opened.say("There are no earlier prompts.")
            return
        picks = [Pick(value=at, label=" ".join(one.split())) for at, one in enumerate(prompts)]
        at = await opened.ask(Picker("Earlier prompts of all chats", picks))
        if at is not None and key == opened.key:
            self._history = PromptHistory(prompts=prompts, place=at, draft=text)
            opened.write(prompts[at])

    def back(self, text: str) -> None:
        if self._history is None:
            self._opened.start(partial(self._read, text), "prompts")
            return
        self._history = self._history.back(text)
        if self._history.text != text:
            self._opened.write(self._history.text)

    def forward(self, text: str) -> bool:
        """False if the text is not a prompt of the history."""
        if self._history is None or not self._history.is_shown(text):
            return False
        self._history = self._history.forward(text)
        self._opened.write(self._history.text)
        return True

    async def _read(self, text: str) -> None:
        key, chat_id = self._opened.key, self._opened.chat_id
        api = self._opened.session.api
        listed = (
            api.list_prompts(limit=MAX_PROMPTS)
            if chat_id is None
            else api.list_chat_prompts(chat_id, limit=MAX_PROMPTS)
        )
        known = [self._cleared[key]] if key in self._cleared else []
        try:
            known += [safe_text(one.text) for one in (await listed).items]
        except (ApiError, ServerUnreachable) as error:
            self._opened.say(f"The earlier prompts were not read. {error.message}", "warning")
        if key == self._opened.key and text == self._opened.draft.text:
            self._history = make_history(known)
            self.back(text)

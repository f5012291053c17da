"""Sends a draft: first its files, then the message. The text stays in the box until the server has
accepted the message."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from chatd.client.errors import ApiError, ServerUnreachable
from chatd.client.outbox import OutboxFull, PendingSend, SendDismissed
from chatd.domain.chat.commands import WhenBusy
from chatd.domain.ids import ChatId
from chatd.terminal.composer.commands import behaviour_of
from chatd.terminal.composer.drafts import WrittenDraft, draft_key
from chatd.terminal.composer.local_files import Mention, mentions_of
from chatd.terminal.composer.message_content import (
    NOTHING_TO_CONTINUE,
    command_in,
    content_of,
    continue_chat,
    edit_body,
    make_draft,
    refusal_of_files,
    refusal_of_text,
)
from chatd.terminal.composer.open_draft import Edited, EditedMessage, OpenDraft
from chatd.terminal.messages import OpenChat
from chatd.terminal.safe_text import safe_line

_PATH_CELLS: Final = 60
_SHOWN_FILES: Final = 3


class Origin(Struct, frozen=True, kw_only=True):
    """Where a message was written: it goes there, whatever chat is open when its files have
    arrived. `behaviour` is what was shown when it was sent."""

    key: str
    chat_id: ChatId | None
    edited: Edited | None
    behaviour: WhenBusy
    was_busy: bool


class Delivery:
    def __init__(self, opened: OpenDraft) -> None:
        self._opened = opened
        self._new_key: str | None = None
        self._on_its_way = ""
        self._starts_chat = False
        self._next: tuple[str, str] | None = None
        self._asked: tuple[str, tuple[str, ...]] | None = None

    def begin(self, written: str) -> None:
        """Called at the Enter, before `send`: what is typed from now on is another message."""
        self._on_its_way, self._next = written, None
        self._starts_chat = self._opened.chat_id is None and self._opened.edited is None

    async def send(self, written: str, text: str) -> None:
        """`text` is what is said; `written` is what stands in the box for it."""
        opened, origin = self._opened, self._origin()
        try:
            # An @ of a command is its own, such as in git show @{u}.
            is_command = bool(command_in(text))
            named = () if is_command else await opened.files.find_unattached(origin.key, text)
            if not self._has_confirmed(origin.key, named):
                return
            await opened.files.attach_all(origin.key, named)
            draft = opened.draft_at(origin.key)
            if refusal := refusal_of_text(text) or refusal_of_files(draft.attachments, text):
                opened.say(refusal, "warning")
            elif origin.edited is not None:
                await self._save_edit(origin, origin.edited, draft, written, text)
            elif origin.chat_id is None:
                await self._create(origin, draft, written, text)
            else:
                self._send_to_chat(origin, draft, written, text)
        except (ApiError, ServerUnreachable, OutboxFull, SendDismissed) as error:
            opened.say(error.message, "error")

    def _has_confirmed(self, key: str, named: Sequence[Mention]) -> bool:
        """A text that was pasted or recalled can name any file of this machine: the person sees
        which, and presses Enter once more. Those of the draft were chosen before."""
        chosen = {one.word for one in self._opened.draft_at(key).attachments}
        named = [one for one in named if one.word not in chosen]
        asked = (key, tuple(one.word for one in named))
        if not named or asked == self._asked:
            self._asked = None
            return True
        self._asked = asked
        names = ", ".join(safe_line(one.path, _PATH_CELLS) for one in named[:_SHOWN_FILES])
        more = f" and {len(named) - _SHOWN_FILES} more" if len(named) > _SHOWN_FILES else ""
        files = "this file" if len(named) == 1 else "these files"
        self._opened.say(
            f"Enter again sends {files} of this machine too: {names}{more}. To leave one out,"
            " remove its @.",
            "warning",
        )
        return False

    def send_at_once(self, written: str, text: str) -> bool:
        """Without waiting for anything, so that the next Enter counts too. False: there are files,
        or the message is not simply one more of a chat."""
        opened, origin = self._opened, self._origin()
        names_files = bool(mentions_of(text)) and not command_in(text)
        is_plain = not opened.draft.attachments and not names_files
        if origin.chat_id is None or origin.edited is not None or not is_plain:
            return False
        if refusal := refusal_of_text(text):
            opened.say(refusal, "warning")
            return True
        try:
            self._send_to_chat(origin, opened.draft, written, text)
        except OutboxFull as error:
            opened.say(error.message, "error")
        return True

    def _origin(self) -> Origin:
        opened = self._opened
        return Origin(
            key=opened.key,
            chat_id=opened.chat_id,
            edited=opened.edited,
            behaviour=opened.busy.value if opened.is_busy else "queue",
            was_busy=opened.is_busy,
        )

    def _send_to_chat(self, origin: Origin, draft: WrittenDraft, written: str, text: str) -> None:
        opened, behaviour = self._opened, origin.behaviour
        if behaviour == "reject":
            opened.say(
                "Not sent: the chat works. Ctrl-G chooses what a message does then.", "warning"
            )
            return
        opened.session.outbox.send(origin.chat_id, make_draft(draft, text, behaviour, is_new=False))
        if origin.was_busy and behaviour != "queue":
            opened.say(f"{behaviour_of(behaviour).sent}.")
        opened.busy = opened.busy.after_send()
        opened.take_sent(origin.key, written)

    async def _create(self, origin: Origin, draft: WrittenDraft, written: str, text: str) -> None:
        opened, outbox = self._opened, self._opened.session.outbox
        draft = replace(draft, text=written)
        item = outbox.send(None, make_draft(draft, text, "queue", is_new=True))
        self._new_key = item.key
        opened.take_sent(origin.key, written)
        try:
            chat_id = await outbox.created(item.key)
        except BaseException:
            # While a try is on its way it cannot be taken back: the chat may exist already.
            if outbox.dismiss(item.key) is not None:
                opened.put_back(origin.key, draft)
            raise
        finally:
            self._new_key = None
        if opened.key == origin.key:
            opened.carry_draft(chat_id)
            opened.post_message(OpenChat(chat_id))
            self._send_next(chat_id)

    def text_after(self, text: str) -> str:
        """What was typed after the message that is on its way, which may still be in the box."""
        return text if self._new_key is not None else text.removeprefix(self._on_its_way)

    def send_after(self, written: str, text: str) -> bool:
        """Once the new chat exists. False: the message before starts none, or another one waits
        already, or this one has files."""
        if not self._starts_chat or self._next is not None or mentions_of(text):
            return False
        self._next = (written, text)
        return True

    def _send_next(self, chat_id: ChatId) -> None:
        """The person pressed Enter while the chat was being created, and the text is in the
        draft."""
        if self._next is None:
            return
        (written, text), self._next = self._next, None
        key = draft_key(chat_id)
        draft = self._opened.draft_at(key)
        if refusal := refusal_of_text(text):
            self._opened.say(refusal, "warning")
        elif draft.text.startswith(written):
            message = make_draft(draft, text, "queue", is_new=False)
            self._opened.session.outbox.send(chat_id, message)
            self._opened.take_sent(key, written)

    @property
    def can_cancel(self) -> bool:
        """Files are being sent, or a first message waits for a server that does not answer."""
        item = self._new_item
        return self._new_key is None or (item is not None and item.state == "waiting")

    @property
    def _new_item(self) -> PendingSend | None:
        items = self._opened.session.outbox.new_chats
        return next((one for one in items if one.key == self._new_key), None)

    def waiting_text(self) -> str:
        """Why creating the new chat takes long; empty if it does not."""
        item = self._new_item
        if item is None:
            return "Sending … Esc cancels"
        if item.problem:
            return "The server does not answer; trying again. Esc cancels"
        return "Starting the chat …"

    async def _save_edit(
        self, origin: Origin, edited: Edited, draft: WrittenDraft, written: str, text: str
    ) -> None:
        opened = self._opened
        assert origin.chat_id is not None
        content = content_of(text, draft.attachments, edited.kept)
        try:
            if isinstance(edited, EditedMessage):
                edit = edit_body(draft, content)
                await opened.session.api.edit_message(origin.chat_id, edited.message_id, edit)
            else:
                with while_queued():
                    await opened.session.api.edit_queued(origin.chat_id, edited.queue_id, content)
        except (SentMeanwhile, ApiError, ServerUnreachable) as error:
            if opened.key != origin.key:
                # Nothing shows the draft of an edit once its chat was left.
                opened.put_back(draft_key(origin.chat_id), replace(draft, text=written))
                opened.say("The edit was not made. Your text is in the box of its chat.", "warning")
            elif isinstance(error, SentMeanwhile):
                self.keep_late_edit(text)
            else:
                raise
            return
        if opened.key == origin.key:
            opened.stop_editing()
        else:
            opened.take_sent(origin.key, written)

    def keep_late_edit(self, text: str) -> None:
        """Keep the new text: put it into the box."""
        self._opened.stop_editing()
        before = self._opened.draft.text.strip()
        self._opened.write(f"{before}\n\n{text}" if before else text)
        self._opened.say(
            "The message was sent a moment ago. Your new text is in the box.", "warning"
        )

    async def continue_chat(self) -> None:
        opened = self._opened
        assert opened.chat is not None
        try:
            if not await continue_chat(opened.session, opened.chat.shown, opened.draft):
                opened.say(NOTHING_TO_CONTINUE)
        except (ApiError, ServerUnreachable, OutboxFull) as error:
            opened.say(error.message, "error")


class SentMeanwhile(Exception):
    """The message has left the queue."""


@contextmanager
def while_queued() -> Generator[None]:
    """Around a request about a queued message. Raises SentMeanwhile."""
    try:
        yield
    except ApiError as error:
        if error.code == "queued_message_gone" or error.status == 404:
            raise SentMeanwhile from error
        raise

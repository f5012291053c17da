"""Compares the database with what clients sent and which replies they got.

No loss: acknowledged messages are stored. No duplicate: no message and no answer is stored twice.
No stuck chat: every chat becomes idle by itself.
"""

from collections.abc import Mapping
from typing import Final, LiteralString

from msgspec import Struct

from chatd.domain.chat.messages import Message, local_calls
from chatd.domain.chat.parts import TextPart
from chatd.domain.ids import ChatId
from chatd.store.conn import Conn
from tests.support.change_log import first_text, prompt_texts
from tests.support.eventually import eventually
from tests.support.stored import Stored, check_all, stored

BUSY_CHATS: Final[LiteralString] = """
    SELECT id, status, epoch, attempt FROM chats
    WHERE status IN ('running', 'interrupting', 'requires_action')"""


class SentMessage(Struct, kw_only=True):
    """A message of a client. `acked`: a replica has acknowledged it; `queued`: it may still have
    been in the queue then. `refused`: by the only replica that was asked. `may_vanish`: a user
    has removed it from the queue, or tried to, or edited it there."""

    chat: ChatId
    text: str
    acked: bool = False
    queued: bool = False
    refused: bool = False
    may_vanish: bool = False

    def answered(self, state: str | None) -> None:
        self.acked = True
        self.queued = state is None or state.endswith("1")

    def check(self, times: int) -> None:
        assert times <= 1, f"doubled: {self}"
        assert times == 1 or self.may_vanish or not self.acked, f"lost: {self}"
        assert times == 0 or not self.refused, f"stored although refused: {self}"


class TranscriptJudge:
    def __init__(self) -> None:
        self.sent: list[SentMessage] = []
        self.stopped: set[ChatId] = set()
        self.hurried: set[ChatId] = set()
        self._by_chat: dict[ChatId, dict[str, SentMessage]] = {}
        self._places: dict[tuple[ChatId, int], list[SentMessage]] = {}
        self._unsure: set[tuple[ChatId, int]] = set()
        self._notes: dict[ChatId, list[str]] = {}

    def record_send(self, chat: ChatId, text: str) -> SentMessage:
        sent = SentMessage(chat=chat, text=text)
        self.sent.append(sent)
        self._by_chat.setdefault(chat, {})[text] = sent
        return sent

    def record_queued(self, chat: ChatId, item: int, text: str) -> None:
        """This message is in this queue item, or is about to be."""
        place, sent = self._places.setdefault((chat, item), []), self._by_chat[chat][text]
        if sent not in place:
            place.append(sent)
        if (chat, item) in self._unsure:
            sent.may_vanish = True

    def record_removal(self, chat: ChatId, item: int) -> None:
        """The message in this queue item may vanish."""
        for sent in self._places[(chat, item)]:
            sent.may_vanish = True

    def record_unknown(self, chat: ChatId, item: int) -> None:
        """The outcome of a removal at this queue item is unknown: it may still be applied, and
        remove what was put there since."""
        self._unsure.add((chat, item))

    def add_note(self, chat: ChatId, what: str) -> None:
        """Record an action on a chat, to be shown if its check fails."""
        self._notes.setdefault(chat, []).append(what)

    def record_interrupt(self, chat: ChatId) -> None:
        """A user interrupted the chat: not every message needs a complete answer."""
        self.stopped.add(chat)

    def record_hurry(self, chat: ChatId) -> None:
        """A user did not wait for earlier answers: only the last message needs one."""
        self.hurried.add(chat)

    def record_queue_cleared(self, chat: ChatId) -> None:
        """All messages in the queue may vanish."""
        for sent in self._by_chat.get(chat, {}).values():
            if sent.queued or not sent.acked:
                sent.may_vanish = True

    async def wait_settled(self, conn: Conn, *, within_s: float) -> None:
        """Wait until every chat is idle."""

        async def at_rest() -> bool:
            return not await _busy(conn)

        try:
            await eventually(at_rest, within_s=within_s)
        except TimeoutError:
            raise AssertionError(f"stuck: {await _busy(conn)}") from None

    async def check(self, conn: Conn, *, crashed: bool = False) -> None:
        """`crashed`: chats that failed because too many of their workers died are accepted."""
        everything = await stored(conn)
        check_all(everything, {})
        self._messages(everything)
        for chat_id, found in everything.items():
            error = found.chat.last_error
            if crashed and error is not None and error.kind == "crashed":
                continue
            try:
                assert found.chat.state == "W", f"{chat_id} ended in {error}"
                self._answers(chat_id, found)
            except AssertionError as broken:
                self._attach_notes(broken, chat_id)
                raise

    def _messages(self, everything: Mapping[ChatId, Stored]) -> None:
        for sent in self.sent:
            found = everything.get(sent.chat)
            try:
                sent.check(0 if found is None else prompt_texts(found).count(sent.text))
            except AssertionError as error:
                self._attach_notes(error, sent.chat)
                raise

    def _attach_notes(self, error: AssertionError, chat: ChatId) -> None:
        for note in self._notes.get(chat, ()):
            error.add_note(note)

    def _answers(self, chat_id: ChatId, found: Stored) -> None:
        answers = [_text(row) for row in found.messages if _is_answer(row)]
        for text in prompt_texts(found):
            assert answers.count(_whole(text)) <= 1, f"answered twice: {text} in {chat_id}"
        if chat_id in self.stopped:
            return
        live = [first_text(row) for row in found.messages if row.starts_turn and not row.deleted]
        due = live[-1:] if chat_id in self.hurried else live
        for text in due:
            assert _whole(text) in answers, f"not answered: {text} in {chat_id}"


def _whole(text: str) -> str:
    return f"answer to {text.split(maxsplit=1)[0]}"


def _is_answer(row: Message) -> bool:
    return row.role == "assistant" and not local_calls(row.content)


def _text(row: Message) -> str:
    return "".join(part.text for part in row.content if isinstance(part, TextPart))


async def _busy(conn: Conn) -> list[str]:
    """Chats that are not idle, with or without an owner."""
    rows = await conn.fetch(BUSY_CHATS)
    return [
        f"{row['id']}: {row['status']}, epoch {row['epoch']}, attempt {row['attempt']}"
        for row in rows
    ]

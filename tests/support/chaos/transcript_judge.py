"""Compares the database with what clients sent and which replies they got.

No loss: acknowledged messages are stored, unless the database went back to an older state. No
duplicate: no message and no answer is stored twice. No stuck chat: every chat becomes idle by
itself.
"""

import asyncio
from collections.abc import Mapping
from typing import Final, LiteralString

from msgspec import Struct

from chatd.domain.chat.messages import Message, local_calls
from chatd.domain.chat.parts import TextPart
from chatd.domain.ids import ChatId
from chatd.store.database.conn import Conn
from tests.support.change_log import first_text, prompt_texts
from tests.support.chaos.family_judge import check_families
from tests.support.chaos.lost_past import Crash, LostPast
from tests.support.chaos.patience import Patience
from tests.support.stored import Stored, check_all, stored

BUSY_CHATS: Final[LiteralString] = """
    SELECT id, status, epoch, attempt, snapshot_version FROM chats
    WHERE status IN ('running', 'interrupting', 'requires_action')"""


class SentMessage(Struct, kw_only=True):
    """A message of a client. `acked`: a replica has acknowledged it; `queued`: it may still have
    been in the queue then. `refused`: by the only replica that was asked. `may_vanish`: a user
    has removed it from the queue, or tried to, or edited it there. `asked_at`: the last request;
    `acked_at`: its acknowledgement; both 0 if the test kept no times."""

    chat: ChatId
    text: str
    acked: bool = False
    queued: bool = False
    refused: bool = False
    may_vanish: bool = False
    asked_at: float = 0.0
    acked_at: float = 0.0

    def asked(self) -> None:
        self.asked_at = asyncio.get_running_loop().time()

    def answered(self, state: str | None) -> None:
        self.acked = True
        self.acked_at = asyncio.get_running_loop().time()
        self.queued = state is None or state.endswith("1")

    def check(self, times: int, *, may_be_lost: bool = False) -> None:
        assert times <= 1, f"doubled: {self}"
        is_free = may_be_lost or self.may_vanish or not self.acked
        assert times == 1 or is_free, f"lost: {self}"
        assert times == 0 or not self.refused, f"stored although refused: {self}"


class TranscriptJudge:
    def __init__(self) -> None:
        self.sent: list[SentMessage] = []
        self.stopped: set[ChatId] = set()
        self.hurried: set[ChatId] = set()
        self.lost_pasts: list[LostPast] = []
        self.crashes: list[Crash] = []
        self._removed_at: dict[ChatId, float] = {}
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
        self._removed_at[chat] = asyncio.get_running_loop().time()
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

    def record_failover(self, past: LostPast) -> None:
        """The database has lost its last commits."""
        self.lost_pasts.append(past)

    def record_crash(self, crash: Crash) -> None:
        """Commits that did not wait for the disk may be lost."""
        self.crashes.append(crash)

    def may_be_lost(self, sent: SentMessage) -> bool:
        """Queue items of a lost past are numbered again: a removal may have hit another one."""
        return any(
            past.may_lose(sent)
            or (sent.queued and self._removed_at.get(sent.chat, 0.0) > past.copied_at)
            for past in self.lost_pasts
        )

    async def wait_settled(self, conn: Conn, *, within_s: float) -> None:
        """Wait until every chat is idle. `within_s`: the longest time without any change of a
        busy chat, on a machine without other load."""
        patience, seen = Patience(within_s), None
        while busy := await _busy(conn):
            if busy != seen:
                patience.renew()
            seen = busy
            assert not patience.is_over, f"stuck: {busy}"
            await asyncio.sleep(0.05)

    async def check(self, conn: Conn) -> None:
        everything = await stored(conn)
        check_all(everything, {})
        self._messages(everything)
        self._lost_pasts(everything)
        check_families(everything, may_be_lost=bool(self.lost_pasts))
        for chat_id, found in everything.items():
            error = found.chat.last_error
            try:
                assert found.chat.state == "W", f"{chat_id} ended in {error}"
                self._answers(chat_id, found)
            except AssertionError as broken:
                self._attach_notes(broken, chat_id)
                raise

    def _messages(self, everything: Mapping[ChatId, Stored]) -> None:
        for sent in self.sent:
            found = everything.get(sent.chat)
            times = 0 if found is None else prompt_texts(found).count(sent.text)
            try:
                sent.check(times, may_be_lost=self.may_be_lost(sent))
            except AssertionError as error:
                self._attach_notes(error, sent.chat)
                raise

    def _lost_pasts(self, everything: Mapping[ChatId, Stored]) -> None:
        for chat_id, sent_in_chat in self._by_chat.items():
            found = everything.get(chat_id)
            stored_texts = [] if found is None else prompt_texts(found)
            for past in self.lost_pasts:
                try:
                    past.check_order(sent_in_chat.values(), stored_texts)
                except AssertionError as error:
                    self._attach_notes(error, chat_id)
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
        f"{row['id']}: {row['status']}, version {row['snapshot_version']}, epoch {row['epoch']}, "
        f"attempt {row['attempt']}"
        for row in rows
    ]

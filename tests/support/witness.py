"""Who was promised what, and whether the database kept it.

Knows what clients sent and what they were answered; looks at nothing but the database. Nothing
lost: what was acknowledged is there. Nothing doubled: no message and no answer is there twice.
Nothing stuck: every chat comes to rest by itself.
"""

from collections.abc import Mapping

from msgspec import Struct

from chatd.domain.ids import ChatId
from chatd.domain.messages import Message, local_calls
from chatd.domain.parts import Text
from chatd.domain.states import BUSY
from chatd.store.conn import Conn
from tests.support.eventually import eventually
from tests.support.ledger import said
from tests.support.stored import Stored, check_all, stored


class Sent(Struct, kw_only=True):
    """A message of a client. `acked` once somebody has answered that it is taken."""

    chat: ChatId
    text: str
    acked: bool = False

    @property
    def name(self) -> str:
        return self.text.split()[0]


class Witness:
    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.stopped: set[ChatId] = set()

    def sends(self, chat: ChatId, text: str) -> Sent:
        sent = Sent(chat=chat, text=text)
        self.sent.append(sent)
        return sent

    def stops(self, chat: ChatId) -> None:
        """A person has asked for it: not every message need have a whole answer now."""
        self.stopped.add(chat)

    async def settled(self, conn: Conn, *, within_s: float) -> None:
        """Until every chat is at rest."""

        async def at_rest() -> bool:
            return not await _busy(conn)

        try:
            await eventually(at_rest, within_s=within_s)
        except TimeoutError:
            raise AssertionError(f"stuck: {await _busy(conn)}") from None

    async def check(self, conn: Conn, *, crashed: bool = False) -> None:
        """`crashed`: a chat may have met so many dying workers that it was given up."""
        everything = await stored(conn)
        check_all(everything, {})
        self._messages(everything)
        for chat_id, found in everything.items():
            error = found.chat.last_error
            if crashed and error is not None and error.kind == "crashed":
                continue
            assert found.chat.state == "W", f"{chat_id} ended in {error}"
            self._answers(chat_id, found)

    def _messages(self, everything: Mapping[ChatId, Stored]) -> None:
        for sent in self.sent:
            found = everything.get(sent.chat)
            times = 0 if found is None else said(found).count(sent.text)
            assert times <= 1, f"doubled: {sent}"
            assert times == 1 or not sent.acked, f"lost: {sent}"

    def _answers(self, chat_id: ChatId, found: Stored) -> None:
        answers = [_text(row) for row in found.messages if _is_answer(row)]
        for text in said(found):
            whole = answers.count(f"answer to {text.split()[0]}")
            assert whole <= 1, f"answered twice: {text} in {chat_id}"
            assert whole == 1 or chat_id in self.stopped, f"not answered: {text} in {chat_id}"


def _is_answer(row: Message) -> bool:
    return row.role == "assistant" and not local_calls(row.content)


def _text(row: Message) -> str:
    return "".join(part.text for part in row.content if isinstance(part, Text))


async def _busy(conn: Conn) -> list[str]:
    return [
        f"{chat_id}: {found.chat.state}, epoch {found.chat.epoch}, attempt {found.chat.attempt}"
        for chat_id, found in (await stored(conn)).items()
        if found.chat.state in BUSY
    ]

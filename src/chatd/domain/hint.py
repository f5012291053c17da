"""The hint one replica sends to the others after a commit.

Owns the payload: what it says and how it is written down. A hint is lossy and may come late,
twice or out of order; whoever acts on one reads the row first. Sending and hearing hints is
the store's business.
"""

import msgspec

from chatd.domain.chat import Chat
from chatd.domain.ids import ChatId, UserId, WorkerId

_NAMES = {
    "chat_id": "c",
    "owner_id": "o",
    "snapshot_version": "v",
    "history_version": "h",
    "queue_version": "q",
    "retry_version": "r",
    "attempt": "a",
    "status": "s",
    "worker_id": "w",
    "epoch": "e",
    "archived": "x",
    "kind": "k",
}


class Hint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename=_NAMES):
    """The versions of one chat just after a commit.

    `kind` is for those who watch lists of chats ("created", "archived", "title", ...). It and
    `status` are open sets: during a deploy a newer replica may send a word this one does not
    know, and the versions are still worth hearing.
    """

    chat_id: ChatId
    owner_id: UserId
    snapshot_version: int
    history_version: int
    queue_version: int = 0
    retry_version: int = 0
    attempt: int = 0
    status: str
    worker_id: WorkerId | None = None
    epoch: int = 0
    archived: bool = False
    kind: str | None = None

    @staticmethod
    def of(chat: Chat, kind: str | None = None) -> "Hint":
        return Hint(
            chat_id=chat.id,
            owner_id=chat.owner_id,
            snapshot_version=chat.snapshot_version,
            history_version=chat.history_version,
            queue_version=chat.queue_version,
            retry_version=chat.retry_version,
            attempt=chat.attempt,
            status=chat.status,
            worker_id=chat.worker_id,
            epoch=chat.epoch,
            archived=chat.archived,
            kind=kind,
        )

    @property
    def runnable(self) -> bool:
        """Wants a worker and has none: anyone with a free slot may try to take it."""
        return self.worker_id is None and self.status in ("running", "interrupting")


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Hint)


def encode(hint: Hint) -> str:
    return _encoder.encode(hint).decode()


def decode(payload: str) -> Hint | None:
    """None for anything that is not a hint: the channel is open to whoever can connect."""
    try:
        return _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None

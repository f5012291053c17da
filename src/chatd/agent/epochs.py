"""Epoch fence: refuse workers that do not own their chat.

The fence knows one owner per chat. Any other claim is refused with the fence's mark. A worker that
gets the mark reads the chat's row; if the row names it as the owner, it claims the chat again with
the mark as proof. So the database decides, also one that was restored to an older state and counts
epochs from a lower number. A mark is valid until the owner changes: a worker that read the row
before that cannot use it.

The fence is in memory only. After a restart of the agent every owner proves itself again, and no
command of the workspace can forge an epoch.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

from chatd.agent.errors import AgentError

MAX_FENCED_CHATS = 4096
_CLAIM = re.compile(r"([0-9]{1,18})(?: ([0-9A-Za-z-]{1,64}) (-|[0-9a-f]{32}))?")


@dataclass(frozen=True)
class OwnerClaim:
    """`worker` is empty in the claim of an older server, which cannot prove anything. Its epoch
    counts if it is not lower than the owner's."""

    epoch: int
    worker: str = ""
    proof: str = ""


def parse_claim(text: str) -> OwnerClaim:
    """`<epoch>`, or `<epoch> <worker> <mark>` with `-` for no mark."""
    match = _CLAIM.fullmatch(text)
    if match is None:
        raise AgentError(400, "the epoch is malformed")
    epoch, worker, proof = match.groups("")
    return OwnerClaim(int(epoch), worker, "" if proof == "-" else proof)


@dataclass(frozen=True)
class _FencedChat:
    epoch: int
    worker: str
    mark: str


class EpochFence:
    def __init__(self, *, max_chats: int = MAX_FENCED_CHATS) -> None:
        self._max_chats = max_chats
        self._chats: dict[str, _FencedChat] = {}

    def check_owner(self, chat_id: str, claim: OwnerClaim | None) -> None:
        """Raises AgentError, with `fence` for the mark, if the claim is not the owner's.

        A request without a chat or a claim is not from a worker and passes.
        """
        if not chat_id or claim is None:
            return
        known = self._chats.get(chat_id) or self._set_owner(chat_id, OwnerClaim(-1))
        if (claim.epoch, claim.worker) == (known.epoch, known.worker):
            return
        is_proven, is_newer = claim.proof == known.mark, claim.epoch >= known.epoch
        is_accepted = is_proven if claim.worker else is_newer
        if not is_accepted:
            raise AgentError(
                409,
                "Another worker has taken over this chat.",
                code="stale_epoch",
                fence=known.mark,
            )
        self._set_owner(chat_id, claim)

    def _set_owner(self, chat_id: str, claim: OwnerClaim) -> _FencedChat:
        # Moved to the end: the chat with the oldest change of owner is dropped first.
        self._chats.pop(chat_id, None)
        chat = self._chats[chat_id] = _FencedChat(claim.epoch, claim.worker, secrets.token_hex(16))
        if len(self._chats) > self._max_chats:
            del self._chats[next(iter(self._chats))]
        return chat

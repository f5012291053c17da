"""Epoch fence: refuse workers that have lost their chat.

The fence stores the highest epoch of each chat on disk. A worker that has lost its chat may not
know it yet; its epoch is lower than that of the new worker.
"""

from __future__ import annotations

import os

from chatd.agent.errors import AgentError
from chatd.agent.json_log import JsonLog, not_noted_error

MAX_FENCED_CHATS = 4096


class EpochFence:
    """Create it inside the event loop, before the first request."""

    def __init__(self, run_dir: str, *, max_chats: int = MAX_FENCED_CHATS) -> None:
        self._max_chats = max_chats
        self._log = JsonLog(os.path.join(run_dir, "fence.jsonl"))
        self._highest: dict[str, int] = {}
        # Chats with an epoch that is not on disk. The chat's next request writes it again.
        self._unwritten: set[str] = set()
        for record in self._log.load():
            chat_id, epoch = record.get("chat"), record.get("epoch")
            if isinstance(chat_id, str) and isinstance(epoch, int):
                self._set_highest(chat_id, max(epoch, self._highest.get(chat_id, 0)))

    async def check_epoch(self, chat_id: str, epoch: int | None) -> None:
        """Refuse an epoch below the highest; a higher one is on disk before this returns.

        A request without a chat or an epoch is not from a worker and passes.
        """
        if not chat_id or epoch is None:
            return
        highest = self._highest.get(chat_id, 0)
        if epoch < highest:
            raise AgentError(409, "Another worker has taken over this chat.", code="stale_epoch")
        if epoch == highest and chat_id not in self._unwritten:
            return
        # In memory first: from now on lower epochs are refused even if the disk fails.
        self._set_highest(chat_id, epoch)
        self._unwritten.add(chat_id)
        try:
            if self._log.lines > 3 * self._max_chats:
                await self._log.rewrite(
                    {"chat": chat, "epoch": number} for chat, number in self._highest.items()
                )
            await self._log.append({"chat": chat_id, "epoch": epoch}, sync=True)
        except OSError as error:
            raise not_noted_error(error) from error
        if self._highest.get(chat_id) == epoch:
            self._unwritten.discard(chat_id)

    def close(self) -> None:
        self._log.close()

    def _set_highest(self, chat_id: str, epoch: int) -> None:
        # Moved to the end: the chat with the oldest change of epoch is dropped first.
        self._highest.pop(chat_id, None)
        self._highest[chat_id] = epoch
        if len(self._highest) > self._max_chats:
            dropped = next(iter(self._highest))
            del self._highest[dropped]
            self._unwritten.discard(dropped)

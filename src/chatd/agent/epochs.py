"""Who may write for a chat: the highest epoch that has been seen, kept on disk.

A worker that has lost its chat may not know it yet; its epoch is lower than that of the new one.
Owns the numbers and the refusal. Which requests are fenced is decided by the server.
"""

from __future__ import annotations

import os

from chatd.agent.errors import AgentError
from chatd.agent.json_log import JsonLog

MAX_FENCED_CHATS = 4096


class EpochFence:
    """Built inside the loop, before the first request."""

    def __init__(self, run_dir: str, *, max_chats: int = MAX_FENCED_CHATS) -> None:
        self._max_chats = max_chats
        self._log = JsonLog(os.path.join(run_dir, "fence.jsonl"))
        self._highest: dict[str, int] = {}
        # Those whose number the disk did not take. Whoever comes next for the chat tries again.
        self._unwritten: set[str] = set()
        for record in self._log.load():
            chat_id, epoch = record.get("chat"), record.get("epoch")
            if isinstance(chat_id, str) and isinstance(epoch, int):
                self._raise(chat_id, max(epoch, self._highest.get(chat_id, 0)))

    async def check_epoch(self, chat_id: str, epoch: int | None) -> None:
        """Refuse an epoch below the highest; a higher one is on disk before this returns.

        Who names no chat or no epoch is not a worker, and is not fenced.
        """
        if not chat_id or epoch is None:
            return
        highest = self._highest.get(chat_id, 0)
        if epoch < highest:
            raise AgentError(
                409, "Another worker has taken over this chat since.", code="stale_epoch"
            )
        if epoch == highest and chat_id not in self._unwritten:
            return
        # In memory first: from here on nobody with less comes in, whatever the disk does.
        self._raise(chat_id, epoch)
        self._unwritten.add(chat_id)
        try:
            if self._log.lines > 3 * self._max_chats:
                await self._log.rewrite(
                    {"chat": chat, "epoch": number} for chat, number in self._highest.items()
                )
            await self._log.append({"chat": chat_id, "epoch": epoch}, sync=True)
        except OSError as error:
            raise AgentError(
                503,
                f"Nothing was done: the workspace cannot note the request on its disk ({error}).",
                code="not_noted",
            ) from error
        if self._highest.get(chat_id) == epoch:
            self._unwritten.discard(chat_id)

    def close(self) -> None:
        self._log.close()

    def _raise(self, chat_id: str, epoch: int) -> None:
        # Moved to the end: the chat that has not changed hands for longest is forgotten first.
        self._highest.pop(chat_id, None)
        self._highest[chat_id] = epoch
        if len(self._highest) > self._max_chats:
            forgotten = next(iter(self._highest))
            del self._highest[forgotten]
            self._unwritten.discard(forgotten)

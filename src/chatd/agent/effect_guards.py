"""What guards an effect: only the owner of a chat causes it, and it happens once.

The epoch fence knows one owner per chat. Any other claim is refused with the fence's mark. A worker
that gets the mark reads the chat's row; if the row names it as the owner, it claims the chat again
with the mark as proof. So the database decides, even one that was restored to an older state and
counts epochs from a lower number. A mark is valid until the owner changes: a worker that read the
row before that cannot use it. The fence is in memory only: after a restart of the agent every owner
proves itself again, and no command of the workspace can forge an epoch.

The idempotency journal writes a key before its effect and again with its result. A repeated key
returns the stored result, waits for the running effect, or fails with `outcome_unknown`.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast

from chatd.agent.durable_files import Json, JsonLog, LogFile, not_noted_error
from chatd.agent.errors import AgentError

# The epoch fence

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


# The idempotency journal

MAX_KEYS = 4096
MAX_RUNNING_EFFECTS = 256
MAX_KEY_BYTES = 512
MAX_RESULT_BYTES = 64 * 1024
MAX_RESULTS_BYTES = 8 * 1024 * 1024
_MAX_LOG_BYTES = 3 * MAX_RESULTS_BYTES
_NOTHING_DONE_STATUSES = (429, 503)

Effect = Callable[[], Awaitable[Json]]


@dataclass
class _KeyEntry:
    """One key. `task` is set while its effect runs; `state` is the state on disk, or soon is."""

    kind: str
    at: float
    state: str = "begun"
    result: Json | None = None
    size: int = 0
    task: asyncio.Task[Json] | None = field(default=None, repr=False)


class IdempotencyJournal:
    """Create it inside the event loop, before the first request: it reads the file of the
    previous boot."""

    def __init__(
        self,
        file: LogFile,
        *,
        now: Callable[[], float] = time.time,
        max_keys: int = MAX_KEYS,
        max_running: int = MAX_RUNNING_EFFECTS,
    ) -> None:
        self._now = now
        self._max_keys = max_keys
        self._max_running = max_running
        self._log = JsonLog(file)
        self._entries: dict[str, _KeyEntry] = {}
        self._results_bytes = 0
        self._running = 0
        for record in self._log.load():
            self._replay(record)
        self._drop_oldest_keys()

    async def run_once(
        self,
        key: str,
        kind: str,
        effect: Effect,
        *,
        repeat_fields: Mapping[str, object] | None = None,
    ) -> Json:
        """The result of the effect, or the stored one, with `repeat_fields` added to the latter.

        The effect continues if the caller is cancelled. An effect that fails with 429 or 503 has
        done nothing, so its key can be used again; any other failure is stored and repeated.
        """
        if not key or len(key.encode("utf-8", "replace")) > MAX_KEY_BYTES:
            raise AgentError(400, f"The idempotency key must have 1 to {MAX_KEY_BYTES} bytes.")
        entry = self._entries.get(key)
        if entry is None and self._running >= self._max_running:
            raise AgentError(503, "The workspace is busy. Nothing was done; try again later.")
        if entry is None:
            return await asyncio.shield(self._start(key, kind, effect))
        if entry.kind != kind:
            raise AgentError(
                409, f"This key was used before, for: {entry.kind}.", code="key_reused"
            )
        if entry.task is not None:
            first = await asyncio.shield(entry.task)
        else:
            first = _stored_result(entry)
        return {**first, **(repeat_fields or {})}

    async def close(self) -> None:
        """Wait for the running effects. The caller starts no more."""
        tasks = [entry.task for entry in self._entries.values() if entry.task is not None]
        if tasks:
            await asyncio.wait(tasks)
        self._log.close()

    def _start(self, key: str, kind: str, effect: Effect) -> asyncio.Task[Json]:
        entry = _KeyEntry(kind, self._now())
        self._entries[key] = entry
        self._drop_oldest_keys()
        entry.task = asyncio.create_task(self._run(key, entry, effect), name=f"once {kind}")
        # Retrieve the exception even if every caller was cancelled; asyncio would log it.
        entry.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return entry.task

    async def _run(self, key: str, entry: _KeyEntry, effect: Effect) -> Json:
        self._running += 1
        try:
            await self._write_begun(key, entry)
            result = await self._run_effect(key, entry, effect)
            self._store(entry, "done", result)
            await self._write(key, entry)
            return result
        finally:
            self._running -= 1
            entry.task = None

    async def _write_begun(self, key: str, entry: _KeyEntry) -> None:
        try:
            if self._log.lines > 3 * self._max_keys or self._log.size > _MAX_LOG_BYTES:
                await self._log.rewrite(_record(*item) for item in self._entries.items())
            await self._log.append(_record(key, entry), sync=True)
        except OSError as error:
            self._entries.pop(key, None)
            raise not_noted_error(error) from error

    async def _run_effect(self, key: str, entry: _KeyEntry, effect: Effect) -> Json:
        try:
            return await effect()
        except AgentError as error:
            if error.status in _NOTHING_DONE_STATUSES:
                self._entries.pop(key, None)
                entry.state = "void"
            else:
                self._store(entry, "failed", {"status": error.status, **error.body()})
            await self._write(key, entry)
            raise

    async def _write(self, key: str, entry: _KeyEntry) -> None:
        # If this fails the result is in memory only; after a restart the outcome is unknown.
        with suppress(OSError):
            await self._log.append(_record(key, entry), sync=False)

    def _store(self, entry: _KeyEntry, state: str, result: Json) -> None:
        entry.state = state
        entry.size = len(json.dumps(result))
        if entry.size > MAX_RESULT_BYTES:
            entry.size = 0
            return
        entry.result = result
        self._results_bytes += entry.size
        for other in self._entries.values():
            if self._results_bytes <= MAX_RESULTS_BYTES:
                break
            self._drop_result(other)

    def _drop_result(self, entry: _KeyEntry) -> None:
        self._results_bytes -= entry.size
        entry.size = 0
        entry.result = None

    def _drop_oldest_keys(self) -> None:
        """Drop by number, not by age: a clock may be corrected by years, and the effect of a
        dropped key may happen twice."""
        excess = len(self._entries) - self._max_keys
        for key, entry in list(self._entries.items()) if excess > 0 else ():
            if excess <= 0:
                break
            if entry.task is None:
                self._drop_result(entry)
                del self._entries[key]
                excess -= 1

    def _replay(self, record: Json) -> None:
        key, kind, state, at = (record.get(name) for name in ("key", "kind", "state", "at"))
        if (
            not isinstance(key, str)
            or not isinstance(kind, str)
            or not isinstance(at, (int, float))
        ):
            return
        previous = self._entries.pop(key, None)
        if previous is not None:
            self._drop_result(previous)
        if state not in {"begun", "done", "failed"}:
            return
        entry = self._entries[key] = _KeyEntry(kind, float(at), str(state))
        result = record.get("result")
        if isinstance(result, dict):
            self._store(entry, entry.state, cast(Json, result))


def _record(key: str, entry: _KeyEntry) -> Json:
    record: Json = {"key": key, "kind": entry.kind, "state": entry.state, "at": entry.at}
    if entry.result is not None:
        record["result"] = entry.result
    return record


def _stored_result(entry: _KeyEntry) -> Json:
    if entry.state == "begun":
        raise AgentError(
            409,
            "This request was started before, and the workspace agent stopped before it recorded "
            "the outcome. It may or may not have happened, and it was not repeated. Check the "
            "state of the workspace before you repeat it.",
            code="outcome_unknown",
        )
    if entry.result is None:
        raise AgentError(
            409,
            "This request was completed before and was not repeated; its result was too large to "
            "store. Check the state of the workspace instead.",
            code="result_not_kept",
        )
    if entry.state == "failed":
        status, message, code = (entry.result.get(name) for name in ("status", "message", "code"))
        raise AgentError(
            status if isinstance(status, int) else 500, str(message), code=str(code or "")
        )
    return entry.result

"""What has been asked under a key happens once: the journal of keys, kept on disk.

A key is noted before its effect begins and again with its result. Owns what a repeated key gets:
the first answer, the answer that is on its way, or the plain word that nobody knows what became
of it. Knows nothing of what the effects are.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast

from chatd.agent.errors import AgentError
from chatd.agent.json_log import Json, JsonLog

MAX_KEYS = 4096
MAX_RUNNING_EFFECTS = 256
MAX_KEY_BYTES = 512
MAX_RESULT_BYTES = 64 * 1024
MAX_RESULTS_BYTES = 8 * 1024 * 1024
_MAX_LOG_BYTES = 3 * MAX_RESULTS_BYTES
_TRY_LATER = (429, 503)

Effect = Callable[[], Awaitable[Json]]


@dataclass
class _Noted:
    """One key. `task` while its effect is under way; `state` is what the disk says, or will."""

    kind: str
    at: float
    state: str = "begun"
    result: Json | None = None
    size: int = 0
    task: asyncio.Task[Json] | None = field(default=None, repr=False)


class IdempotencyJournal:
    """Built inside the loop, before the first request: it reads what an earlier boot has noted."""

    def __init__(
        self,
        run_dir: str,
        *,
        now: Callable[[], float] = time.time,
        max_keys: int = MAX_KEYS,
        max_running: int = MAX_RUNNING_EFFECTS,
    ) -> None:
        self._now = now
        self._max_keys = max_keys
        self._max_under_way = max_running
        self._log = JsonLog(os.path.join(run_dir, "once.jsonl"))
        self._noted: dict[str, _Noted] = {}
        self._results_bytes = 0
        self._under_way = 0
        for record in self._log.load():
            self._take_over(record)
        self._forget_old()

    async def run_once(
        self,
        key: str,
        kind: str,
        effect: Effect,
        *,
        repeat_fields: Mapping[str, object] | None = None,
    ) -> Json:
        """The effect's result, now or from the first time; then `again` is laid over it.

        The effect goes on if the caller is cancelled. If it is refused with 429 or 503, which
        mean "nothing was done, try later", the key is free again; other refusals are repeated.
        """
        if not key or len(key.encode("utf-8", "replace")) > MAX_KEY_BYTES:
            raise AgentError(400, f"The idempotency key must have 1 to {MAX_KEY_BYTES} bytes.")
        noted = self._noted.get(key)
        if noted is None and self._under_way >= self._max_under_way:
            raise AgentError(503, "The workspace is busy. Nothing was done; try again later.")
        if noted is None:
            return await asyncio.shield(self._begin(key, kind, effect))
        if noted.kind != kind:
            raise AgentError(
                409, f"This key was used before, for: {noted.kind}.", code="key_reused"
            )
        if noted.task is not None:
            first = await asyncio.shield(noted.task)
        else:
            first = _answer(noted)
        return {**first, **(repeat_fields or {})}

    async def close(self) -> None:
        """Wait for what is under way. The caller has seen to it that nothing new comes."""
        tasks = [noted.task for noted in self._noted.values() if noted.task is not None]
        if tasks:
            await asyncio.wait(tasks)
        self._log.close()

    def _begin(self, key: str, kind: str, effect: Effect) -> asyncio.Task[Json]:
        noted = _Noted(kind, self._now())
        self._noted[key] = noted
        self._forget_old()
        noted.task = asyncio.create_task(self._run(key, noted, effect), name=f"once {kind}")
        # If every caller has left, the error is still nobody's surprise.
        noted.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return noted.task

    async def _run(self, key: str, noted: _Noted, effect: Effect) -> Json:
        self._under_way += 1
        try:
            await self._note_begun(key, noted)
            result = await self._watched(key, noted, effect)
            self._keep(noted, "done", result)
            await self._note(key, noted)
            return result
        finally:
            self._under_way -= 1
            noted.task = None

    async def _note_begun(self, key: str, noted: _Noted) -> None:
        try:
            if self._log.lines > 3 * self._max_keys or self._log.size > _MAX_LOG_BYTES:
                await self._log.rewrite(self._records())
            await self._log.append(_record(key, noted), sync=True)
        except OSError as error:
            self._noted.pop(key, None)
            raise AgentError(
                503,
                f"Nothing was done: the workspace cannot note the request on its disk ({error}).",
                code="not_noted",
            ) from error

    async def _watched(self, key: str, noted: _Noted, effect: Effect) -> Json:
        try:
            return await effect()
        except AgentError as refusal:
            if refusal.status in _TRY_LATER:
                self._noted.pop(key, None)
                noted.state = "void"
            else:
                self._keep(noted, "failed", {"status": refusal.status, **refusal.body()})
            await self._note(key, noted)
            raise

    async def _note(self, key: str, noted: _Noted) -> None:
        # If it fails, memory still knows; after a restart the outcome is unknown, and that is true.
        with suppress(OSError):
            await self._log.append(_record(key, noted), sync=False)

    def _keep(self, noted: _Noted, state: str, result: Json) -> None:
        noted.state = state
        noted.size = len(json.dumps(result))
        if noted.size > MAX_RESULT_BYTES:
            noted.size = 0
            return
        noted.result = result
        self._results_bytes += noted.size
        for other in self._noted.values():
            if self._results_bytes <= MAX_RESULTS_BYTES:
                break
            self._drop_result(other)

    def _drop_result(self, noted: _Noted) -> None:
        self._results_bytes -= noted.size
        noted.size = 0
        noted.result = None

    def _forget_old(self) -> None:
        """By their number and not by their age: a clock may be put right by years at any time,
        and what is forgotten may be done twice."""
        excess = len(self._noted) - self._max_keys
        for key, noted in list(self._noted.items()) if excess > 0 else ():
            if excess <= 0:
                break
            if noted.task is None:
                self._drop_result(noted)
                del self._noted[key]
                excess -= 1

    def _take_over(self, record: Json) -> None:
        key, kind, state, at = (record.get(name) for name in ("key", "kind", "state", "at"))
        if (
            not isinstance(key, str)
            or not isinstance(kind, str)
            or not isinstance(at, (int, float))
        ):
            return
        before = self._noted.pop(key, None)
        if before is not None:
            self._drop_result(before)
        if state not in {"begun", "done", "failed"}:
            return
        noted = self._noted[key] = _Noted(kind, float(at), str(state))
        result = record.get("result")
        if isinstance(result, dict):
            self._keep(noted, noted.state, cast(Json, result))

    def _records(self) -> Iterator[Json]:
        for key, noted in self._noted.items():
            yield _record(key, noted)


def _record(key: str, noted: _Noted) -> Json:
    record: Json = {"key": key, "kind": noted.kind, "state": noted.state, "at": noted.at}
    if noted.result is not None:
        record["result"] = noted.result
    return record


def _answer(noted: _Noted) -> Json:
    """What somebody gets who asks later."""
    if noted.state == "begun":
        raise AgentError(
            409,
            "This was begun before, and the workspace agent was interrupted before it could note "
            "the outcome. It may have happened or not, and it was not done again. Look at the "
            "state of the workspace before you repeat it.",
            code="outcome_unknown",
        )
    if noted.result is None:
        raise AgentError(
            409,
            "This was done before and not done again; its answer was too large to be kept. Look "
            "at the state of the workspace instead.",
            code="result_not_kept",
        )
    if noted.state == "failed":
        status, message, code = (noted.result.get(name) for name in ("status", "message", "code"))
        raise AgentError(
            status if isinstance(status, int) else 500, str(message), code=str(code or "")
        )
    return noted.result

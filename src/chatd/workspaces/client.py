"""A workspace agent as the rest of the house sees it: `domain.hands.AgentConn`, over signed HTTP.

An agent that was restarted is greeted again and asked once more: what has an effect carries a
key, so nothing is done twice. The words of its API are in `agent_wire`.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Final
from urllib.parse import quote, urlencode

import msgspec

from chatd.domain.ids import ChatId
from chatd.domain.ports import Clock
from chatd.domain.workspace.agent_api import (
    AgentRefused,
    AgentUnreachable,
    FileDiff,
    FileEdits,
    FileLines,
    GitChanges,
    ProcessInfo,
    ProcessOutput,
    ProcessSignal,
    StartedProcess,
    WorkspaceContext,
)
from chatd.domain.workspace.entities import AgentId
from chatd.workspaces.agent_wire import (
    Diffs,
    Edits,
    GitEvent,
    Hello,
    OnBehalf,
    Processes,
    Start,
    accepted,
    decode,
)
from chatd.workspaces.asking import MAX_JSON, Ask, Line

API: Final = "/api/v0"
MAX_FILE: Final = 10 << 20
MAX_HELLO: Final = 16 << 10
MAX_CONTEXT: Final = 16 << 20
"""An agent has two MiB of it at most, and every byte may need an escape."""
SLICE_S: Final = 60.0
"""The agent would wait for up to five minutes; asking more often notices sooner that it is gone."""
HASTE_S: Final = 0.5
"""One that does not wait, as it was asked to, is not asked more often than this."""
ANSWER_S: Final = 30.0
GREET_S: Final = 10.0
MAX_CHANGES: Final = 24 << 20
"""A diff has three MiB at most, and every byte may need an escape."""
SILENT_S: Final = 45.0
"""An agent that watches says every fifteen seconds that it does."""

_LINES: Final = {
    "max_file_size": 1 << 20,
    "max_line_bytes": 1024,
    "max_response_lines": 2000,
    "max_response_bytes": 32 * 1024,
}


class Boot:
    """Which life of the agent is spoken to. Shared by everyone on one line, so that only the
    first to notice a restart has to greet again."""

    def __init__(self, boot_id: str) -> None:
        self.id = boot_id


async def greet(line: Line, agent_id: AgentId, *, within_s: float = GREET_S) -> Hello:
    """Dialling: a proof, in both directions, that this is the agent that is meant."""
    ask = Ask(method="GET", target="/healthz", answer_s=within_s, max_answer=MAX_HELLO)
    answer = await line.ask(ask)
    hello = decode(accepted(answer), Hello)
    if hello.agent_id != str(agent_id) or hello.boot_id != answer.boot:
        raise AgentUnreachable("Another agent answers here.", code="agent_untrusted")
    return hello


class AgentClient:
    """Satisfies `domain.hands.AgentConn`. Cheap: one for each chat on a line."""

    def __init__(
        self,
        line: Line,
        agent_id: AgentId,
        boot: Boot,
        clock: Clock,
        on_behalf: OnBehalf | None = None,
    ) -> None:
        self._line = line
        self._boot = boot
        self._clock = clock
        self._headers = {} if on_behalf is None else on_behalf.headers()
        self.agent_id = agent_id

    @property
    def lost(self) -> bool:
        """The agent has left a question without an answer, and nothing has been heard since."""
        return self._line.lost

    @property
    def asking(self) -> bool:
        """Somebody waits for an answer of the agent."""
        return self._line.asking

    def on_behalf_of(self, on_behalf: OnBehalf) -> "AgentClient":
        return AgentClient(self._line, self.agent_id, self._boot, self._clock, on_behalf)

    async def read_lines(self, path: str, *, offset: int = 1, limit: int = 2000) -> FileLines:
        query = {"path": path, "offset": offset, "limit": limit, **_LINES}
        return decode(await self._get("/read-file-lines", query), FileLines)

    async def read_file(self, path: str, *, offset: int = 0, limit: int = 0) -> bytes:
        """A file that is too large to be held is refused, never cut."""
        most = min(limit, MAX_FILE) if limit else MAX_FILE
        query = {"path": path, "offset": offset, "limit": most if limit == most else most + 1}
        content = await self._get("/read-file", query, max_answer=MAX_FILE + 1)
        if len(content) > most:
            raise AgentRefused(
                f"{path} is larger than the {MAX_FILE} bytes that can be read at once;"
                " read it in parts",
                status=413,
            )
        return content

    async def write_file(self, path: str, content: bytes, *, key: str) -> None:
        if len(content) > MAX_FILE:
            raise AgentRefused(f"more than {MAX_FILE} bytes cannot be written", status=413)
        await self._post("/write-file", content, query={"path": path}, key=key)

    async def edit_files(self, files: Sequence[FileEdits], *, key: str) -> tuple[FileDiff, ...]:
        body = msgspec.json.encode(Edits(files=tuple(files)))
        return decode(await self._post("/edit-files", body, key=key), Diffs).files

    async def start_process(
        self,
        command: str,
        *,
        key: str,
        workdir: str | None = None,
        env: Mapping[str, str] | None = None,
        background: bool = False,
    ) -> StartedProcess:
        start = Start(command=command, workdir=workdir, env=env or {}, background=background)
        body = msgspec.json.encode(start)
        return decode(await self._post("/processes/start", body, key=key), StartedProcess)

    async def output(self, process_id: str, *, wait_s: float = 0, after: int = 0) -> ProcessOutput:
        """Waits for the end of the process, or for `wait_s`, whichever comes first."""
        until = self._clock.monotonic() + wait_s
        target = f"/processes/{_segment(process_id)}/output"
        while True:
            asked_at = self._clock.monotonic()
            left = min(max(until - asked_at, 0), SLICE_S)
            raw = await self._get(target, {"wait_s": f"{left:.3f}", "after": after}, wait_s=left)
            output = decode(raw, ProcessOutput)
            now = self._clock.monotonic()
            if not output.running or now >= until:
                return output
            if now < asked_at + HASTE_S:
                pause_s = min(asked_at + HASTE_S, until) - now
                await self._clock.sleep(pause_s, "agent_haste")

    async def processes(self) -> tuple[ProcessInfo, ...]:
        return decode(await self._get("/processes/list"), Processes).processes

    async def signal(self, process_id: str, signal: ProcessSignal) -> None:
        body = msgspec.json.encode({"signal": signal})
        await self._post(f"/processes/{_segment(process_id)}/signal", body)

    async def context(self, *, after: int = 0, wait_s: float = 0) -> WorkspaceContext:
        """The context when it is newer than `after`, or as it is after `wait_s`."""
        wait_s = min(wait_s, SLICE_S)
        query = {"after": after, "wait_s": f"{wait_s:.3f}"}
        raw = await self._get("/context", query, wait_s=wait_s, max_answer=MAX_CONTEXT)
        return decode(raw, WorkspaceContext)

    async def git_changes(self, chat_id: ChatId) -> AsyncGenerator[GitChanges]:
        """How the repositories stand that this chat has touched, then what changes. The agent ends
        it after an hour. Raises AgentRefused and AgentLost."""
        target = _target("/git/watch", {"chat_id": chat_id})
        ask = Ask(method="GET", target=target, answer_s=ANSWER_S, max_answer=MAX_CHANGES)
        boot = self._boot.id
        lines = self._line.lines(ask, boot=boot, idle_s=SILENT_S, refuse=accepted)
        async with aclosing(lines):
            async for line in lines:
                event = decode(line, GitEvent)
                if event.type == "changes":
                    yield GitChanges(scanned_at=event.scanned_at, repositories=event.repositories)

    async def _get(
        self,
        path: str,
        query: Mapping[str, object] | None = None,
        *,
        wait_s: float = 0,
        max_answer: int = MAX_JSON,
    ) -> bytes:
        ask = Ask(
            method="GET",
            target=_target(path, query),
            headers=self._headers,
            answer_s=ANSWER_S + wait_s,
            max_answer=max_answer,
        )
        return await self._ask(ask)

    async def _post(
        self,
        path: str,
        body: bytes,
        *,
        query: Mapping[str, object] | None = None,
        key: str | None = None,
    ) -> bytes:
        if len(body) > MAX_FILE:
            raise AgentRefused("the request is too large", status=413)
        headers = self._headers if key is None else {**self._headers, "Idempotency-Key": key}
        target = _target(path, query)
        return await self._ask(Ask(method="POST", target=target, headers=headers, body=body))

    async def _ask(self, ask: Ask) -> bytes:
        boot = self._boot.id
        answer = await self._line.ask(ask, boot=boot)
        if answer.boot != boot:
            # It has said so itself, and has therefore done nothing.
            if self._boot.id == boot:
                self._boot.id = (await greet(self._line, self.agent_id)).boot_id
            answer = await self._line.ask(ask, boot=self._boot.id)
            if answer.boot != self._boot.id:
                raise AgentUnreachable("The workspace agent is restarted again and again.")
        return accepted(answer)


def _target(path: str, query: Mapping[str, object] | None) -> str:
    target = API + path
    return f"{target}?{urlencode(query, quote_via=quote)}" if query else target


def _segment(text: str) -> str:
    return quote(text, safe="")

"""The API of a workspace agent as Python methods, over signed HTTP.

`AgentClient` encodes requests and decodes replies. A `RequestSender` delivers them: either
`ConnectedAgent`, which knows one run of one agent, or the access of a chat, which finds the agent
and repeats a lost request.
"""

from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from typing import Final, Literal, Protocol, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Raw, Struct

from chatd.domain.computer_use import InputAction, PictureRegion, Screen
from chatd.domain.errors import ChatdError
from chatd.domain.ids import ChatId, MessageId
from chatd.domain.ports import Clock
from chatd.domain.workspace.agent_api import (
    ActedOnDesktop,
    AgentRefused,
    AgentUnreachable,
    BrowserAction,
    BrowserPage,
    DesktopPicture,
    DesktopRecording,
    DesktopState,
    DiffScope,
    FileDiff,
    FileEdits,
    FileLines,
    GitChanges,
    ProcessInfo,
    ProcessOutput,
    ProcessSignal,
    RepositoryDiff,
    ScopedDiff,
    StartedProcess,
    WorkspaceContext,
)
from chatd.domain.workspace.entities import AgentId
from chatd.workspaces.agents.agent_session import (
    KEY_HEADER,
    MAX_JSON_BYTES,
    AgentRequest,
    AgentResponse,
    AgentSession,
)
from chatd.workspaces.tunnels.byte_streams import ByteStream

# The JSON of requests, replies and refusals

T = TypeVar("T")

EPOCH_HEADER: Final = "Chatd-Epoch"
MAX_ERROR_CHARS: Final = 16 * 1024
"""Limit for an agent's error message, which the model reads."""
KNOWN_ERROR_CODES: Final = frozenset(
    {
        "agent_rebooted",
        "archive_too_large",
        "bad_archive",
        "bad_mac",
        "bug",
        "busy",
        "clock_skew",
        "context_not_ready",
        "copies_busy",
        "desktop_taken",
        "disk_busy",
        "disk_timeout",
        "file_changed",
        "input_unread",
        "key_reused",
        "no_browser",
        "no_desktop",
        "no_recording",
        "no_resources",
        "no_route",
        "no_shell",
        "no_such_port",
        "no_such_stream",
        "no_such_terminal",
        "no_such_workdir",
        "no_terminal",
        "not_noted",
        "not_reverted",
        "not_running",
        "outcome_unknown",
        "outside_workspace",
        "replayed",
        "result_not_kept",
        "stale_epoch",
        "stale_ref",
        "terminal_ended",
        "too_many_processes",
        "too_many_terminals",
        "too_many_viewers",
        "unsigned",
        "wrong_agent",
    }
)
"""Failures are counted by code. Other codes are dropped, so that a workspace cannot create an
unbounded number of counters."""


UNKNOWN_OUTCOME_TEXT: Final = (
    "The outcome of this call is unknown: it may have taken effect. Once the workspace answers"
    " again, check that before you repeat the call."
)


class OutcomeUnknown(AgentRefused):
    """A request with an effect may have reached the agent, and chatd has no reply that it can
    read."""

    def __init__(self, reason: ChatdError) -> None:
        text = f"{reason.message} {UNKNOWN_OUTCOME_TEXT}"
        super().__init__(text, status=0, code="outcome_unknown")


class _DirectoryEntry(Struct, frozen=True, kw_only=True):
    name: str
    is_dir: bool


class DirectoryBody(Struct, frozen=True, kw_only=True):
    contents: tuple[_DirectoryEntry, ...]


class PathBody(Struct, frozen=True, kw_only=True):
    path: str


class AgentHello(Struct, frozen=True, kw_only=True):
    """The reply to a health check."""

    agent_id: str
    boot_id: str
    version: str = ""
    started_at: int = 0
    ready: bool = False
    directory: str = ""


class OwnerUnproven(AgentRefused):
    """The agent knows another owner of the chat, or none, and has done nothing. `fence` is the mark
    that a proof of ownership must name."""

    def __init__(self, message: str, fence: str) -> None:
        super().__init__(message, status=409, code="stale_epoch")
        self.fence = fence


class ChatIdentity(Struct, frozen=True, kw_only=True):
    """The chat that a request acts for, the epoch of its worker, and the message that began the
    turn: before its first effect the agent keeps the trees as they are."""

    chat_id: ChatId
    ancestors: tuple[ChatId, ...] = ()
    epoch: int = 0
    turn: MessageId | None = None

    def headers(self) -> dict[str, str]:
        headers = {"Chatd-Chat-Id": str(self.chat_id), EPOCH_HEADER: str(self.epoch)}
        if self.turn is not None:
            headers["Chatd-Turn"] = str(self.turn)
        if self.ancestors:
            names = [str(chat_id) for chat_id in self.ancestors]
            headers["Chatd-Ancestor-Chat-Ids"] = msgspec.json.encode(names).decode()
        return headers


class AgentErrorBody(Struct, frozen=True, kw_only=True):
    message: str = ""
    code: str | None = None
    fence: str = ""


class ScopedDiffsBody(Struct, frozen=True, kw_only=True):
    repositories: tuple[ScopedDiff, ...] = ()


class DiffsBody(Struct, frozen=True, kw_only=True):
    files: tuple[FileDiff, ...] = ()


class McpCallBody(Struct, frozen=True, kw_only=True):
    """`running`: the call goes on, and the same request asks again for its result."""

    running: bool = False
    result: Raw = Raw(b"{}")


class ActBody(ActedOnDesktop, frozen=True, kw_only=True):
    """`running`: the actions go on, and the same request asks again for their outcome."""

    running: bool = False


class BrowserActBody(BrowserPage, frozen=True, kw_only=True):
    """`running`: the action goes on, and the same request asks again for its outcome."""

    running: bool = False


class RecordingBody(Struct, frozen=True, kw_only=True):
    refusal: str = ""


class PictureFacts(Struct, frozen=True, kw_only=True):
    x: int = 0
    y: int = 0
    taken_by: str = ""
    note: str = ""
    starts: int = 1
    took_ms: dict[str, float] = {}


class ProcessesBody(Struct, frozen=True, kw_only=True):
    processes: tuple[ProcessInfo, ...] = ()


class EditsBody(Struct, frozen=True, kw_only=True):
    files: tuple[FileEdits, ...]
    include_diff: bool = True


class StartProcessBody(Struct, frozen=True, kw_only=True, omit_defaults=True):
    command: str
    workdir: str | None = None
    env: Mapping[str, str] = {}
    background: bool = False


class GitEvent(Struct, frozen=True, kw_only=True):
    type: str
    scanned_at: str = ""
    repositories: tuple[RepositoryDiff, ...] = ()


def check_status(response: AgentResponse) -> bytes:
    """The body of a reply with status 200. Raises AgentRefused for every other status."""
    if response.status == 200:
        return response.body
    try:
        error = msgspec.json.decode(response.body, type=AgentErrorBody)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        error = AgentErrorBody()
    raise refusal(error, response.status)


def refusal(error: AgentErrorBody, status: int) -> AgentRefused:
    message = error.message or f"the workspace agent refused with status {status}"
    if len(message) > MAX_ERROR_CHARS:
        message = f"{message[:MAX_ERROR_CHARS]} [cut]"
    if error.code == "stale_epoch" and error.fence:
        return OwnerUnproven(message, error.fence)
    code = error.code if error.code in KNOWN_ERROR_CODES else None
    return AgentRefused(message, status=status, code=code)


def decode_effect_reply(raw: bytes, type_: type[T]) -> T:
    """Raises OutcomeUnknown: the effect has happened, and the agent's account of it is lost."""
    try:
        return decode_reply(raw, type_)
    except AgentUnreachable as error:
        raise OutcomeUnknown(error) from error


def decode_reply(raw: bytes, type_: type[T]) -> T:
    try:
        return msgspec.json.decode(raw, type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    raise AgentUnreachable("The workspace agent sent a reply that cannot be read.")


# The client

API_PREFIX: Final = "/api/v0"
MAX_FILE_BYTES: Final = 10 << 20
MAX_HELLO_BYTES: Final = 16 << 10
MAX_CONTEXT_BYTES: Final = 16 << 20
"""An agent keeps at most 2 MiB of context; JSON escapes can multiply that."""
MAX_GIT_CHANGES_BYTES: Final = 24 << 20
"""A diff has at most 3 MiB; JSON escapes can multiply that."""
MAX_MCP_RESULT_BYTES: Final = 24 << 20
"""The agent reads at most 16 MiB of a server's reply; JSON escapes can multiply that."""
MAX_SCREENSHOT_BYTES: Final = 10 << 20
RECORDING_READ_BYTES: Final = 1 << 20
RECORDING_STOP_WAIT_S: Final = 30.0
"""ffmpeg finishes the file, copies it and makes its poster."""
PNG_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
GIT_DIFF_TIMEOUT_S: Final = 30.0
OUTPUT_POLL_S: Final = 60.0
"""How long one request waits for output. The agent allows five minutes; a shorter request notices
a lost agent sooner."""
OUTDATED_TEXT: Final = (
    "The workspace was started by an older version of chatd. Stop it and start it again."
)
MIN_POLL_INTERVAL_S: Final = 0.5
"""Minimum time between two polls, for an agent that replies at once instead of waiting."""
HANDSHAKE_TIMEOUT_S: Final = 10.0
GIT_WATCH_IDLE_TIMEOUT_S: Final = 45.0
"""Without a line for this long the watch has failed: the agent sends one every 15 seconds."""

_LINE_LIMITS: Final = {
    "max_file_size": 1 << 20,
    "max_line_bytes": 1024,
    "max_response_lines": 2000,
    "max_response_bytes": 32 * 1024,
}


@contextmanager
def explain_outdated() -> Generator[None]:
    """Tell the user what to do if the agent is too old to know the route."""
    try:
        yield
    except AgentRefused as error:
        if error.code == "no_route":
            raise AgentRefused(OUTDATED_TEXT, status=404, code="agent_outdated") from None
        raise


class RequestSender(Protocol):
    async def send(self, request: AgentRequest) -> bytes:
        """The body of the reply. Raises AgentRefused, AgentUnreachable, and WorkspaceUnavailable
        if the workspace turns out to have no agent."""
        ...


class AgentConnection(RequestSender, Protocol):
    """A sender that knows one agent. `asks_for_owner`: the agent expects the proof that the worker
    owns its chat."""

    @property
    def asks_for_owner(self) -> bool: ...


async def handshake(
    session: AgentSession, agent_id: AgentId, *, timeout_s: float = HANDSHAKE_TIMEOUT_S
) -> AgentHello:
    """Learn the boot id. The signatures prove to each side that the other has the agent's key."""
    request = AgentRequest(
        method="GET", target="/healthz", timeout_s=timeout_s, max_body_bytes=MAX_HELLO_BYTES
    )
    response = await session.send(request)
    hello = decode_reply(check_status(response), AgentHello)
    if hello.agent_id != str(agent_id) or hello.boot_id != response.boot:
        raise AgentUnreachable("Another agent answers here.", code="agent_untrusted")
    return hello


class ConnectedAgent:
    """An agent after a handshake: its session and its boot id. Holds no open connection."""

    def __init__(self, session: AgentSession, agent_id: AgentId, hello: AgentHello) -> None:
        self._session = session
        self.agent_id = agent_id
        self.hello = hello

    @property
    def asks_for_owner(self) -> bool:
        return self.hello.version not in ("", "1")

    async def send(self, request: AgentRequest) -> bytes:
        """Satisfies `AgentConnection`. An agent that was restarted refuses the old boot id before
        it acts, so the request is sent once more after a new handshake."""
        boot = self.hello.boot_id
        response = await self._session.send(request, boot=boot)
        if response.boot != boot:
            boot = await self._new_boot(boot)
            response = await self._session.send(request, boot=boot)
            if response.boot != boot:
                raise AgentUnreachable("The workspace agent restarts again and again.")
        return check_status(response)

    async def _new_boot(self, boot: str) -> str:
        if self.hello.boot_id == boot:  # another request may have made the handshake already
            self.hello = await handshake(self._session, self.agent_id)
        return self.hello.boot_id

    async def open_bytes(self, request: AgentRequest) -> ByteStream:
        """The agent turns the connection into a stream of bytes. Raises AgentRefused and
        AgentUnreachable."""
        boot = self.hello.boot_id
        response, stream = await self._session.open_bytes(request, boot=boot)
        if response.boot != boot and stream is None:
            boot = await self._new_boot(boot)
            response, stream = await self._session.open_bytes(request, boot=boot)
        if stream is None:
            check_status(response)
            raise AgentUnreachable("The workspace agent sent a reply that cannot be read.")
        return stream

    def stream_lines(
        self, request: AgentRequest, *, idle_timeout_s: float
    ) -> AsyncGenerator[bytes]:
        """The lines of a streamed reply. Raises AgentRefused and AgentUnreachable."""
        return self._session.stream_lines(
            request, boot=self.hello.boot_id, idle_timeout_s=idle_timeout_s, refuse=check_status
        )

    async def git_changes(self, chat_id: ChatId) -> AsyncGenerator[GitChanges]:
        """The state of the repositories that the chat has touched, then every change. The agent
        ends the stream after an hour. Raises AgentRefused and AgentUnreachable."""
        request = AgentRequest(
            method="GET",
            target=_target("/git/watch", {"chat_id": chat_id}),
            max_body_bytes=MAX_GIT_CHANGES_BYTES,
        )
        lines = self.stream_lines(request, idle_timeout_s=GIT_WATCH_IDLE_TIMEOUT_S)
        async with aclosing(lines):
            async for line in lines:
                event = decode_reply(line, GitEvent)
                if event.type == "changes":
                    yield GitChanges(scanned_at=event.scanned_at, repositories=event.repositories)

    async def git_diff(
        self, chat_id: ChatId, scope: DiffScope, turn: MessageId | None, *, with_text: bool
    ) -> tuple[ScopedDiff, ...]:
        """What the scope has changed. Raises AgentRefused and AgentUnreachable."""
        query = {"chat_id": chat_id, "scope": scope, "turn": "" if turn is None else turn}
        if not with_text:
            query["stat"] = "true"
        request = AgentRequest(
            method="GET",
            target=_target("/git/diff", query),
            max_body_bytes=MAX_GIT_CHANGES_BYTES,
            timeout_s=GIT_DIFF_TIMEOUT_S,
        )
        return decode_reply(await self.send(request), ScopedDiffsBody).repositories


class AgentClient:
    """The requests to one agent: on behalf of one chat if an identity is given, else of the server.

    Raises AgentRefused and AgentUnreachable only. A `key` is an idempotency key: the agent answers
    a repeated key with the first result and does nothing else.
    """

    def __init__(
        self, sender: RequestSender, clock: Clock, identity: ChatIdentity | None = None
    ) -> None:
        self._sender = sender
        self._clock = clock
        self._headers = {} if identity is None else identity.headers()

    async def read_lines(self, path: str, *, offset: int = 1, limit: int = 2000) -> FileLines:
        query = {"path": path, "offset": offset, "limit": limit, **_LINE_LIMITS}
        return decode_reply(await self._get("/read-file-lines", query), FileLines)

    async def read_file(self, path: str, *, offset: int = 0, limit: int = 0) -> bytes:
        """Refuses a file that is too large instead of returning part of it."""
        most = min(limit, MAX_FILE_BYTES) if limit else MAX_FILE_BYTES
        query = {"path": path, "offset": offset, "limit": most if limit == most else most + 1}
        content = await self._get("/read-file", query, max_body_bytes=MAX_FILE_BYTES + 1)
        if len(content) > most:
            raise AgentRefused(
                f"{path} is larger than {MAX_FILE_BYTES} bytes, the most that one call can read;"
                " read it in parts",
                status=413,
            )
        return content

    async def home(self) -> str:
        """The home directory, with all links resolved."""
        with explain_outdated():
            return decode_reply(await self._get("/home"), PathBody).path

    async def list_names(self, directory: str) -> tuple[str, ...]:
        """The names in a directory; those of directories end with a slash."""
        body = {"path": [part for part in directory.split("/") if part], "relativity": "root"}
        raw = await self._post("/list-directory", msgspec.json.encode(body))
        found = decode_reply(raw, DirectoryBody).contents
        return tuple(f"{entry.name}/" if entry.is_dir else entry.name for entry in found)

    async def resolve_path(self, path: str) -> str:
        """Where a path leads after all links; a missing tail stays as it is."""
        return decode_reply(await self._get("/resolve-path", {"path": path}), PathBody).path

    async def write_file(self, path: str, content: bytes, *, key: str) -> None:
        if len(content) > MAX_FILE_BYTES:
            raise AgentRefused(
                f"one call can write at most {MAX_FILE_BYTES} bytes; write less", status=413
            )
        await self._post("/write-file", content, query={"path": path}, key=key)

    async def edit_files(self, files: Sequence[FileEdits], *, key: str) -> tuple[FileDiff, ...]:
        body = msgspec.json.encode(EditsBody(files=tuple(files)))
        return decode_effect_reply(await self._post("/edit-files", body, key=key), DiffsBody).files

    async def start_process(
        self,
        command: str,
        *,
        key: str,
        workdir: str | None = None,
        env: Mapping[str, str] | None = None,
        background: bool = False,
        wait_s: float = 0,
    ) -> StartedProcess:
        """Waits up to `wait_s` for its end, so that a quick command needs no second request. Agents
        of earlier versions do not wait."""
        start = StartProcessBody(
            command=command, workdir=workdir, env=env or {}, background=background
        )
        body = msgspec.json.encode(start)
        query = {"wait_s": f"{wait_s:.3f}"} if wait_s else None
        reply = await self._post("/processes/start", body, query=query, key=key, wait_s=wait_s)
        return decode_effect_reply(reply, StartedProcess)

    async def output(self, process_id: str, *, wait_s: float = 0, after: int = 0) -> ProcessOutput:
        """Waits until the process ends, at most `wait_s`."""
        until = self._clock.monotonic() + wait_s
        path = f"/processes/{_segment(process_id)}/output"
        while True:
            started_at = self._clock.monotonic()
            poll_s = min(max(until - started_at, 0), OUTPUT_POLL_S)
            raw = await self._get(path, {"wait_s": f"{poll_s:.3f}", "after": after}, wait_s=poll_s)
            output = decode_reply(raw, ProcessOutput)
            now = self._clock.monotonic()
            if not output.running or now >= until:
                return output
            if now < started_at + MIN_POLL_INTERVAL_S:
                delay_s = min(started_at + MIN_POLL_INTERVAL_S, until) - now
                await self._clock.sleep(delay_s, "output_poll")

    async def processes(self) -> tuple[ProcessInfo, ...]:
        return decode_reply(await self._get("/processes/list"), ProcessesBody).processes

    async def signal(self, process_id: str, signal: ProcessSignal) -> None:
        body = msgspec.json.encode({"signal": signal})
        await self._post(f"/processes/{_segment(process_id)}/signal", body)

    async def context(self, *, after: int = 0, wait_s: float = 0) -> WorkspaceContext:
        """Waits until the context is newer than `after`, at most `wait_s`."""
        wait_s = min(wait_s, OUTPUT_POLL_S)
        query = {"after": after, "wait_s": f"{wait_s:.3f}"}
        raw = await self._get("/context", query, wait_s=wait_s, max_body_bytes=MAX_CONTEXT_BYTES)
        return decode_reply(raw, WorkspaceContext)

    async def call_mcp_tool(self, server: str, tool: str, args: Raw, *, key: str) -> Raw:
        """The result as the MCP server sent it. Repeats the request while the call runs: the agent
        knows it by its key."""
        fields = {"server": server, "tool": tool, "arguments": bytes(args).decode()}
        body = msgspec.json.encode(fields)
        while True:
            raw = await self._post("/mcp/call", body, key=key, max_body_bytes=MAX_MCP_RESULT_BYTES)
            reply = decode_effect_reply(raw, McpCallBody)
            if not reply.running:
                return reply.result

    async def desktop(self) -> DesktopState:
        with explain_outdated():
            return decode_reply(await self._get("/desktop"), DesktopState)

    async def act(self, actions: Sequence[InputAction], *, key: str) -> ActedOnDesktop:
        """Use mouse and keyboard. The agent waits while a person has taken over. The request is
        repeated while the actions run: the agent knows them by their key."""
        body = msgspec.json.encode({"actions": actions})
        while True:
            raw = await self._post("/desktop/act", body, key=key)
            reply = decode_effect_reply(raw, ActBody)
            if not reply.running:
                return ActedOnDesktop(
                    done=reply.done, error=reply.error, unknown=reply.unknown, person=reply.person
                )

    async def screenshot(
        self, size: Screen, region: PictureRegion | None = None, *, settles: bool = False
    ) -> DesktopPicture:
        """A PNG of this size. `settles`: taken once the screen has stopped changing for a moment.
        The reply is a line of facts, and the image."""
        query: dict[str, object] = {"width": size.width, "height": size.height}
        query["settles"] = "true" if settles else "false"
        if region is not None:
            query["region"] = f"{region.x},{region.y},{region.width},{region.height}"
        raw = await self._get("/desktop/screenshot", query, max_body_bytes=MAX_SCREENSHOT_BYTES)
        line, _, image = raw.partition(b"\n")
        facts = decode_reply(line, PictureFacts)
        if not image.startswith(PNG_SIGNATURE):
            raise AgentUnreachable("The workspace agent sent a reply that cannot be read.")
        return DesktopPicture(
            image=image,
            x=facts.x,
            y=facts.y,
            taken_by=facts.taken_by,
            note=facts.note,
            starts=facts.starts,
            took_ms=facts.took_ms,
        )

    async def use_browser(self, action: BrowserAction, *, key: str) -> BrowserPage:
        """Repeats the request while the action runs: the agent knows it by its key."""
        body = msgspec.json.encode(action)
        while True:
            with explain_outdated():
                raw = await self._post("/browser/act", body, key=key)
            reply = decode_effect_reply(raw, BrowserActBody)
            if not reply.running:
                return reply

    async def read_page(self, *, offset: int = 1, text: str = "") -> BrowserPage:
        """The page's lines from `offset` on, or those that contain `text`."""
        query: dict[str, object] = {"offset": offset, "text": text}
        with explain_outdated():
            return decode_reply(await self._get("/browser/page", query), BrowserPage)

    async def wait_for_page(
        self, *, text: str = "", selector: str = "", seconds: float
    ) -> BrowserPage:
        query: dict[str, object] = {"text": text, "selector": selector, "seconds": seconds}
        with explain_outdated():
            raw = await self._get("/browser/wait", query, wait_s=seconds)
        return decode_reply(raw, BrowserPage)

    async def page_screenshot(self) -> BrowserPage:
        """The reply is a line of facts, and the image."""
        with explain_outdated():
            raw = await self._get("/browser/screenshot", max_body_bytes=MAX_SCREENSHOT_BYTES)
        line, _, image = raw.partition(b"\n")
        if not image.startswith(PNG_SIGNATURE):
            raise AgentUnreachable("The workspace agent sent a reply that cannot be read.")
        return msgspec.structs.replace(decode_reply(line, BrowserPage), image=image)

    async def start_recording(self, name: str) -> str:
        """Record the desktop until `stop_recording` or a limit. Returns why it cannot, or ""."""
        with explain_outdated():
            raw = await self._post(f"/desktop/recordings/{_segment(name)}/start", b"{}")
        return decode_reply(raw, RecordingBody).refusal

    async def stop_recording(self, name: str) -> DesktopRecording:
        with explain_outdated():
            raw = await self._post(
                f"/desktop/recordings/{_segment(name)}/stop", b"{}", wait_s=RECORDING_STOP_WAIT_S
            )
        return decode_reply(raw, DesktopRecording)

    async def read_recording(self, name: str, kind: Literal["mp4", "jpg"], offset: int) -> bytes:
        """The next bytes of a recording that has ended; empty after the last."""
        query = {"kind": kind, "offset": offset, "limit": RECORDING_READ_BYTES}
        path = f"/desktop/recordings/{_segment(name)}/file"
        return await self._get(path, query, max_body_bytes=RECORDING_READ_BYTES)

    async def _get(
        self,
        path: str,
        query: Mapping[str, object] | None = None,
        *,
        wait_s: float = 0,
        max_body_bytes: int = MAX_JSON_BYTES,
    ) -> bytes:
        request = AgentRequest(
            method="GET",
            target=_target(path, query),
            headers=self._headers,
            wait_s=wait_s,
            max_body_bytes=max_body_bytes,
        )
        return await self._sender.send(request)

    async def _post(
        self,
        path: str,
        body: bytes,
        *,
        query: Mapping[str, object] | None = None,
        key: str | None = None,
        wait_s: float = 0,
        max_body_bytes: int = MAX_JSON_BYTES,
    ) -> bytes:
        if len(body) > MAX_FILE_BYTES:
            text = f"the request has more than {MAX_FILE_BYTES} bytes; send less at once"
            raise AgentRefused(text, status=413)
        headers = self._headers if key is None else {**self._headers, KEY_HEADER: key}
        target = _target(path, query)
        request = AgentRequest(
            method="POST",
            target=target,
            headers=headers,
            body=body,
            wait_s=wait_s,
            max_body_bytes=max_body_bytes,
        )
        return await self._sender.send(request)


def _target(path: str, query: Mapping[str, object] | None) -> str:
    target = API_PREFIX + path
    return f"{target}?{urlencode(query, quote_via=quote)}" if query else target


def _segment(text: str) -> str:
    return quote(text, safe="")

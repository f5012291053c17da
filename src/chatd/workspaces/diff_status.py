"""The diff status of chats: how much a chat has changed in its workspace, and the pull request of
its branch.

A chat is marked at each request to its agent. A few seconds later the agent is asked once for the
sums of the whole chat, then the git host for the pull request, and the row is written only if
something changed. No step waits for this. While checks run, or while a pushed branch has no pull
request yet, the host is asked again every minute, until the chat has been unused for half an hour.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Final

import aiohttp
from msgspec import Struct
from msgspec.structs import replace

from chatd.domain.access.permissions import WORKER
from chatd.domain.chat.row import Chat, DiffStatus
from chatd.domain.deployment.repositories import api_url, host_of
from chatd.domain.errors import ChatdError
from chatd.domain.ids import ChatId, UserId
from chatd.domain.mcp.oauth import split_url
from chatd.domain.ports import Env
from chatd.domain.text import clip, model_text
from chatd.domain.workspace.agent_api import ScopedDiff
from chatd.domain.workspace.pull_requests import (
    MAX_REMOTE_CHARS,
    WELL_KNOWN_HOSTS,
    GitHostKind,
    GitRemote,
    PullRequest,
    auth_headers,
    checks_paths,
    new_pull_request_url,
    parse_remote,
    read_checks,
    read_pull_request,
    search_path,
)
from chatd.git_hosts.host_apis import HostApis
from chatd.guarded_dial import guarded_session, read_bounded
from chatd.sealed_secrets import KeyRing
from chatd.store.account import git_credentials
from chatd.store.account.git_credentials import TOKEN
from chatd.store.chat import chats
from chatd.store.database.conn import Conn
from chatd.store.deployment import repository_work
from chatd.store.deployment.repositories import SealedAccess

DIFF_STATUS_DELAY_S: Final = 3.0
"""Time from the first request of a chat to its refresh, which covers later requests in between."""
DIFF_STATUS_TIMEOUT_S: Final = 20.0
MAX_REFRESHES: Final = 8
"""Limit for refreshes at once: an agent that does not answer holds up one of them."""
MAX_DIRTY_CHATS: Final = 1000
MAX_BRANCH_CHARS: Final = 255
MAX_COUNT: Final = 1_000_000_000
"""An agent is not trusted, and each row of a chat list has this."""

RECHECK_INTERVAL_S: Final = 60.0
RECHECK_FOR_S: Final = 30 * 60.0
"""How long after the chat's last request to its agent the host is asked again."""

ReadSums = Callable[[Chat], Awaitable[Sequence[ScopedDiff]]]
CompleteStatus = Callable[[Chat, DiffStatus], Awaitable[DiffStatus]]


def can_change_elsewhere(status: DiffStatus) -> bool:
    """Whether a pull request may be opened, merged or checked while the chat does nothing."""
    if status.pull_request is not None:
        return status.pull_request.state in ("open", "draft")
    return status.new_pull_request_url is not None and status.ahead == 0


async def _unchanged(chat: Chat, status: DiffStatus) -> DiffStatus:
    del chat
    return status


def sum_diffs(found: Sequence[ScopedDiff]) -> DiffStatus | None:
    """Over all repositories, with the branch of the one with most changes. None without any.
    Bounded, and in a form that can be stored."""
    if not found:
        return None
    main = max(found, key=lambda one: one.additions + one.deletions)
    return DiffStatus(
        remote_url=clip(model_text(main.remote), MAX_REMOTE_CHARS),
        ahead=None if main.ahead is None else _count([main.ahead]),
        behind=None if main.behind is None else _count([main.behind]),
        branch=clip(model_text(main.branch), MAX_BRANCH_CHARS),
        base=clip(model_text(main.base), MAX_BRANCH_CHARS),
        additions=_count(one.additions for one in found),
        deletions=_count(one.deletions for one in found),
        changed_files=_count(one.changed_files for one in found),
    )


def _count(numbers: Iterable[int]) -> int:
    return min(max(sum(numbers), 0), MAX_COUNT)


class DiffStatusKeeper:
    """Refreshes only while `run` runs. `read` asks the agent of a chat, `complete` its git host."""

    def __init__(
        self,
        conn: Conn,
        env: Env,
        read: ReadSums,
        announce: Callable[[Chat, str], None],
        complete: CompleteStatus = _unchanged,
    ) -> None:
        self._conn = conn
        self._env = env
        self._read = read
        self._announce = announce
        self._complete = complete
        self._dirty: dict[ChatId, None] = {}
        self._used_at_s: dict[ChatId, float] = {}
        self._watched: set[ChatId] = set()
        self._has_work = asyncio.Event()

    def mark(self, chat_id: ChatId) -> None:
        """The chat has sent a request to its agent."""
        if len(self._dirty) < MAX_DIRTY_CHATS:
            self._used_at_s[chat_id] = self._env.clock.monotonic()
            self._dirty[chat_id] = None
            self._has_work.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._refresh_marked())
            group.create_task(self._recheck())

    async def _recheck(self) -> None:
        while True:
            await self._env.clock.sleep(RECHECK_INTERVAL_S, "diff_recheck")
            before = self._env.clock.monotonic() - RECHECK_FOR_S
            self._used_at_s = {id_: at for id_, at in self._used_at_s.items() if at > before}
            self._watched &= self._used_at_s.keys()
            for chat_id in self._watched:
                self._dirty[chat_id] = None
            if self._dirty:
                self._has_work.set()

    async def _refresh_marked(self) -> None:
        while True:
            await self._has_work.wait()
            await self._env.clock.sleep(DIFF_STATUS_DELAY_S, "diff_status")
            dirty, self._dirty = self._dirty, {}
            self._has_work.clear()
            waiting = iter(dirty)
            async with asyncio.TaskGroup() as group:
                for _ in range(min(MAX_REFRESHES, len(dirty))):
                    group.create_task(self._refresh_all(waiting))

    async def _refresh_all(self, waiting: Iterator[ChatId]) -> None:
        for chat_id in waiting:
            await self._refresh(chat_id)

    async def _refresh(self, chat_id: ChatId) -> None:
        """Best effort: an unreachable agent is asked again at the chat's next request."""
        try:
            async with asyncio.timeout(DIFF_STATUS_TIMEOUT_S):
                chat = await chats.get(self._conn, WORKER, chat_id)
                if chat is None:
                    return
                status = sum_diffs(await self._read(chat))
                self._watched.discard(chat_id)
                if status is None:
                    return
                status = await self._complete(chat, status)
                if can_change_elsewhere(status):
                    self._watched.add(chat_id)
                if status == chat.diff_status:
                    return
                written = await chats.set_diff_status(self._conn, WORKER, chat_id, status)
        except (ChatdError, TimeoutError) as error:
            kind = error.code if isinstance(error, ChatdError) else "timeout"
            self._env.emit("diff_status_failed", chat_id=chat_id, error_kind=kind)
            return
        except Exception as error:  # noqa: BLE001 - the status of one chat must not end the process
            self._env.emit("diff_status_failed", chat_id=chat_id, error=error, error_kind="bug")
            return
        if written is not None:
            self._announce(written, "diff")


# Pull requests, read from git hosts with the credential of the chat's owner.
#
# Best effort, bounded and cached: if a host does not answer, the known state stays. The token goes
# only to the address that its user gave, never to one that a reply names.

GIT_HOST_TIMEOUT_S: Final = 10.0
"""Limit for all requests about one pull request."""
MAX_GIT_HOST_REPLY_BYTES: Final = 4 * 1024 * 1024
PULL_REQUEST_FRESH_S: Final = 60.0
"""A host is not asked again about a branch within this time: it limits the requests of a token."""
GIT_HOST_REST_S: Final = 60.0
"""A host that failed is not asked again for the same user within this time."""
MAX_KNOWN_PULL_REQUESTS: Final = 2000

_Key = tuple[UserId, str, str]


class _HostToken(Struct, frozen=True, kw_only=True):
    """That of the user is sealed; `access` is that of a connection."""

    kind: GitHostKind
    api_url: str
    sealed: str = ""
    context: str = ""
    access: SealedAccess | None = None


class _Known(Struct, frozen=True, kw_only=True):
    read_at_s: float
    pull_request: PullRequest | None


class GitHostFailed(ChatdError):
    """A git host did not answer, or not as it should. The message has no secret."""

    code = "git_host_failed"


class PullRequests:
    """`private_hosts` may be on this host or in private networks, in lower case."""

    def __init__(
        self,
        conn: Conn,
        ring: KeyRing,
        env: Env,
        apis: HostApis,
        private_hosts: frozenset[str] = frozenset(),
    ) -> None:
        self._conn = conn
        self._ring = ring
        self._apis = apis
        self._env = env
        self._private_hosts = private_hosts
        self._known: dict[_Key, _Known] = {}
        self._rests: dict[tuple[UserId, str], float] = {}

    async def complete(self, chat: Chat, status: DiffStatus) -> DiffStatus:
        """With the pull request of the branch, or with the page on which one is opened. Never
        raises: what was known stays if the host does not answer."""
        remote = parse_remote(status.remote_url)
        if remote is None:
            return status
        credential: _HostToken | None = None
        found = _former(chat, status)
        try:
            credential = await self._find_token(chat, remote)
            if credential is None:
                found = None
            elif self._env.clock.monotonic() >= self._rests.get((chat.owner_id, remote.host), 0.0):
                found = await self._pull_request(chat, credential, remote, status.branch)
        except ChatdError as error:
            self._rest(chat.owner_id, remote.host)
            self._env.emit(
                "pull_request_failed",
                chat_id=chat.id,
                host=remote.host,
                error_kind=error.code,
                reason=error.message,
            )
        kind = WELL_KNOWN_HOSTS.get(remote.host) if credential is None else credential.kind
        is_open = found is not None and found.state in ("open", "draft")
        page = None
        if kind is not None and not is_open:
            page = new_pull_request_url(kind, remote, status.branch, status.base)
        return replace(status, pull_request=found, new_pull_request_url=page)

    async def _find_token(self, chat: Chat, remote: GitRemote) -> "_HostToken | None":
        """The owner's for the host, else that of the connection that started the chat, for its
        repository."""
        own = await git_credentials.find(self._conn, chat.owner_id, remote.host)
        if own is not None:
            context = TOKEN.context(own.id)
            return _HostToken(
                kind=own.kind, api_url=own.api_url, sealed=own.sealed_token, context=context
            )
        given = await repository_work.find_chat_access(self._conn, chat, chat.owner_id)
        if given is None or given.repository.lower() != remote.path.lower():
            return None
        access = given.access
        if host_of(access.url) != remote.host:
            return None
        url = api_url(access.vendor, access.url)
        return _HostToken(kind=access.vendor, api_url=url, access=access)

    def _rest(self, owner: UserId, host: str) -> None:
        now = self._env.clock.monotonic()
        self._rests = {key: until for key, until in self._rests.items() if until > now}
        if len(self._rests) < MAX_KNOWN_PULL_REQUESTS:
            self._rests[owner, host] = now + GIT_HOST_REST_S

    async def _pull_request(
        self, chat: Chat, credential: "_HostToken", remote: GitRemote, branch: str
    ) -> PullRequest | None:
        """Raises GitHostFailed, HostCallFailed, SecretUnreadable."""
        key, now = (chat.owner_id, f"{remote.host}/{remote.path}", branch), self._env.clock
        known = self._known.get(key)
        if known is not None and now.monotonic() < known.read_at_s + PULL_REQUEST_FRESH_S:
            return known.pull_request
        if credential.access is None:
            token = self._ring.open(credential.sealed, credential.context)
        else:
            token = await self._apis.token(credential.access, remote.path, "api")
        found = await self.read(credential.kind, credential.api_url, token, remote, branch)
        self._known.pop(key, None)
        self._known[key] = _Known(read_at_s=now.monotonic(), pull_request=found)
        while len(self._known) > MAX_KNOWN_PULL_REQUESTS:
            del self._known[next(iter(self._known))]
        return found

    async def read(
        self, kind: GitHostKind, api_url: str, token: str, remote: GitRemote, branch: str
    ) -> PullRequest | None:
        """Raises GitHostFailed."""
        pieces = split_url(api_url)
        if pieces is None:
            raise GitHostFailed("The address of the host's API is not valid. Give the token again.")
        host = pieces.host
        try:
            async with (
                asyncio.timeout(GIT_HOST_TIMEOUT_S),
                guarded_session(allow_private=host in self._private_hosts) as session,
            ):
                headers = {"accept": "application/json", **auth_headers(kind, token)}
                listed = await _get(session, api_url, search_path(kind, remote, branch), headers)
                found = read_pull_request(kind, remote, branch, listed)
                if found is None:
                    return None
                bodies = [
                    await _get(session, api_url, path, headers)
                    for path in checks_paths(kind, remote, found)
                ]
                return replace(found.pull_request, checks=read_checks(kind, bodies))
        except TimeoutError:
            raise GitHostFailed(f"{host} did not answer in time.") from None
        except (aiohttp.ClientError, OSError) as error:
            raise GitHostFailed(f"{host} cannot be reached: {type(error).__name__}.") from None
        except ValueError as error:
            raise GitHostFailed(f"{host} gave an answer of another form: {error}.") from None


async def _get(
    session: aiohttp.ClientSession, api_url: str, path: str, headers: dict[str, str]
) -> bytes:
    """Raises GitHostFailed for a refusal."""
    async with session.get(f"{api_url}{path}", headers=headers, allow_redirects=False) as reply:
        is_limited = reply.headers.get("x-ratelimit-remaining") == "0" or reply.status == 429
        if is_limited and reply.status != 200:
            raise GitHostFailed("The host limits the requests of this token for now.")
        if reply.status in (401, 403):
            text = f"The token was refused with status {reply.status}. Give a new one."
            raise GitHostFailed(text)
        if reply.status != 200:
            raise GitHostFailed(f"The host answered with status {reply.status}.")
        return await read_bounded(reply, MAX_GIT_HOST_REPLY_BYTES)


def _former(chat: Chat, status: DiffStatus) -> PullRequest | None:
    """The pull request that was known of the same branch."""
    before = chat.diff_status
    is_same = before is not None and (
        (before.remote_url, before.branch) == (status.remote_url, status.branch)
    )
    return before.pull_request if before is not None and is_same else None

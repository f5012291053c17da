"""Asks git hosts about the pull requests of branches, with the credential of a chat's owner.

Best effort, bounded and cached: a host that does not answer leaves what was known. The token goes
to the address that its user gave, and to no address that a reply names.
"""

import asyncio
from typing import Final

import aiohttp
from msgspec import Struct
from msgspec.structs import replace

from chatd.domain.chat.pull_requests import (
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
from chatd.domain.chat.row import Chat, DiffStatus
from chatd.domain.errors import ChatdError
from chatd.domain.ids import UserId
from chatd.domain.mcp.oauth_addresses import split_url
from chatd.domain.ports import Env
from chatd.guarded_dial import guarded_session, read_bounded
from chatd.sealed_secrets import KeyRing
from chatd.store import git_credentials
from chatd.store.conn import Conn
from chatd.store.git_credentials import TOKEN, GitCredential

GIT_HOST_TIMEOUT_S: Final = 10.0
"""For all requests about one pull request."""
MAX_GIT_HOST_REPLY_BYTES: Final = 4 * 1024 * 1024
PULL_REQUEST_FRESH_S: Final = 60.0
"""A host is not asked again about a branch within this time: it limits the requests of a token."""
GIT_HOST_REST_S: Final = 60.0
"""A host that failed is not asked again for the same user within this time."""
MAX_KNOWN_PULL_REQUESTS: Final = 2000

_Key = tuple[UserId, str, str]


class _Known(Struct, frozen=True, kw_only=True):
    read_at_s: float
    pull_request: PullRequest | None


class GitHostFailed(ChatdError):
    """A git host did not answer, or not as it should. The message has no secret."""

    code = "git_host_failed"


class PullRequests:
    """`private_hosts` may be on this host or in private networks, in lower case."""

    def __init__(
        self, conn: Conn, ring: KeyRing, env: Env, private_hosts: frozenset[str] = frozenset()
    ) -> None:
        self._conn = conn
        self._ring = ring
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
        credential: GitCredential | None = None
        found = _former(chat, status)
        try:
            credential = await git_credentials.find(self._conn, chat.owner_id, remote.host)
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

    def _rest(self, owner: UserId, host: str) -> None:
        now = self._env.clock.monotonic()
        self._rests = {key: until for key, until in self._rests.items() if until > now}
        if len(self._rests) < MAX_KNOWN_PULL_REQUESTS:
            self._rests[owner, host] = now + GIT_HOST_REST_S

    async def _pull_request(
        self, chat: Chat, credential: GitCredential, remote: GitRemote, branch: str
    ) -> PullRequest | None:
        """Raises GitHostFailed, SecretUnreadable."""
        key, now = (chat.owner_id, f"{remote.host}/{remote.path}", branch), self._env.clock
        known = self._known.get(key)
        if known is not None and now.monotonic() < known.read_at_s + PULL_REQUEST_FRESH_S:
            return known.pull_request
        token = self._ring.open(credential.sealed_token, TOKEN.context(credential.id))
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
    """What was known of the same branch."""
    before = chat.diff_status
    is_same = before is not None and (
        (before.remote_url, before.branch) == (status.remote_url, status.branch)
    )
    return before.pull_request if before is not None and is_same else None

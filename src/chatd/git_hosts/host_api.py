"""What chatd asks of a git host, and the HTTP requests that carry it.

A host is not trusted: replies are bounded, redirects are not followed, and the token goes to the
address of the connection only.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Literal, Protocol, TypeVar

import aiohttp
import msgspec
from msgspec import Struct

from chatd.domain.deployment.repositories import Access
from chatd.domain.errors import ChatdError
from chatd.domain.ports import Clock
from chatd.domain.text import clip, model_text
from chatd.domain.workspace.pull_requests import FoundPullRequest
from chatd.guarded_dial import guarded_session, read_bounded

HOST_TIMEOUT_S: Final = 20.0
"""For one request to a git host."""
MAX_HOST_REPLY_BYTES: Final = 4 * 1024 * 1024
MAX_HOST_WAIT_S: Final = 3600.0
"""A host that asks to wait for longer is asked again after this time."""
DEFAULT_LIMIT_WAIT_S: Final = 60.0
"""After a refusal for too many requests that does not say how long to wait."""
MAX_COMMENT_PAGES: Final = 10
"""In which a comment is looked for whose id was lost."""
PAGE_SIZE: Final = 100
UNAUTHORIZED: Final = 401
_LIMITED: Final = b"rate limit"

T = TypeVar("T")
Method = Literal["GET", "POST", "PATCH", "PUT"]
FailureReason = Literal["refused", "limited", "missing", "unavailable", "rejected"]


class HostCallFailed(ChatdError):
    """`refused`: the token is not accepted, or not for this. `limited`: too many requests, ask
    after `wait_s`. `missing`: there is no such thing, or it may not be seen. `unavailable`: no
    usable answer, ask again. `rejected`: the request itself is wrong. The message has no secret."""

    code = "git_host_failed"

    def __init__(
        self,
        reason: FailureReason,
        message: str,
        wait_s: float | None = None,
        *,
        status: int = 0,
        said: str = "",
    ) -> None:
        """`status` and `said`: the reply of the host, if there was one."""
        super().__init__(message)
        self.reason: FailureReason = reason
        self.wait_s = wait_s
        self.status = status
        self.said = said


class _Said(Struct, frozen=True, kw_only=True):
    message: object = None
    error: object = None


class Thread(Struct, frozen=True, kw_only=True):
    """An issue or a pull request."""

    repository: str
    number: int
    is_pull: bool


class PullHead(Struct, frozen=True, kw_only=True):
    """`branch` is empty for a pull request from another repository."""

    branch: str


class NewPull(Struct, frozen=True, kw_only=True):
    branch: str
    base: str
    title: str
    body: str


class GitHostApi(Protocol):
    """All raise HostCallFailed."""

    async def check(self) -> str:
        """Who the token is."""
        ...

    async def access(self, repository: str, login: str, user_id: int) -> Access: ...

    async def pull_head(self, repository: str, number: int) -> PullHead: ...

    async def find_comment(self, thread: Thread, marker: str) -> str | None: ...

    async def create_comment(self, thread: Thread, text: str) -> str: ...

    async def edit_comment(self, thread: Thread, comment_id: str, text: str) -> None: ...

    async def has_branch(self, repository: str, branch: str) -> bool: ...

    async def default_branch(self, repository: str) -> str: ...

    async def find_pull(self, repository: str, branch: str) -> FoundPullRequest | None:
        """The newest one of this branch."""
        ...

    async def open_pull(self, repository: str, new: NewPull) -> None:
        """Raises HostCallFailed with `rejected` also if there is one already."""
        ...


FindToken = Callable[[str | None], Awaitable[str]]
"""A token that works, and not the one that the host has just refused. Raises HostCallFailed."""


class HostRequests:
    """Requests with the headers of one connection to its API, at `base` without a slash."""

    def __init__(
        self, base: str, headers: Mapping[str, str], clock: Clock, *, allow_private: bool
    ) -> None:
        self.base = base
        self._headers = {"accept": "application/json", "user-agent": "chatd", **headers}
        self._clock = clock
        self._allow_private = allow_private
        self._find_token: FindToken | None = None

    def with_token(self, token: str, scheme: str = "Bearer") -> "HostRequests":
        headers = {**self._headers, "authorization": f"{scheme} {token}"}
        return HostRequests(self.base, headers, self._clock, allow_private=self._allow_private)

    def with_tokens(self, find: FindToken) -> "HostRequests":
        """With tokens that expire: each request asks for one."""
        made = HostRequests(
            self.base, self._headers, self._clock, allow_private=self._allow_private
        )
        made._find_token = find
        return made

    async def get(self, path: str, kind: type[T]) -> T:
        return self._decode(await self.send("GET", path), kind)

    async def write(self, method: Method, path: str, body: object, kind: type[T]) -> T:
        return self._decode(await self.send(method, path, body), kind)

    async def send(self, method: Method, path: str, body: object = None) -> bytes:
        """A token that the host no longer takes is replaced once. Raises HostCallFailed."""
        if self._find_token is None:
            return await self._send(method, path, body)
        token = await self._find_token(None)
        try:
            return await self.with_token(token)._send(method, path, body)
        except HostCallFailed as error:
            if error.status != UNAUTHORIZED:
                raise
        token = await self._find_token(token)
        return await self.with_token(token)._send(method, path, body)

    async def _send(self, method: Method, path: str, body: object) -> bytes:
        data = None if body is None else msgspec.json.encode(body)
        headers = self._headers if data is None else {**self._headers, **_JSON}
        try:
            async with (
                asyncio.timeout(HOST_TIMEOUT_S),
                guarded_session(allow_private=self._allow_private) as session,
                session.request(
                    method, f"{self.base}{path}", data=data, headers=headers, allow_redirects=False
                ) as reply,
            ):
                content = await read_bounded(reply, MAX_HOST_REPLY_BYTES)
                if 200 <= reply.status < 300:
                    return content
                now_s = self._clock.now().timestamp()
                raise _failure(reply.status, reply.headers, content, now_s)
        except TimeoutError:
            text = f"The host did not answer within {HOST_TIMEOUT_S:.0f} seconds."
            raise HostCallFailed("unavailable", text) from None
        except (aiohttp.ClientError, OSError) as error:
            text = f"The host cannot be reached: {clip(str(error), 200) or type(error).__name__}"
            raise HostCallFailed("unavailable", text) from None
        except ValueError as error:
            raise HostCallFailed("unavailable", f"The host's reply: {error}.") from None

    @staticmethod
    def _decode(content: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(content, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise HostCallFailed("unavailable", "The host's reply has another form.") from None


_JSON: Final = {"content-type": "application/json"}


def _failure(
    status: int, headers: Mapping[str, str], content: bytes, now_s: float
) -> HostCallFailed:
    words = _message(content)
    said = f": {words}" if words else ""
    is_empty = headers.get("x-ratelimit-remaining", headers.get("ratelimit-remaining")) == "0"
    is_limited = "retry-after" in headers or is_empty or _LIMITED in content[:2000].lower()
    wait_s: float | None = None
    reason: FailureReason = "unavailable"
    text = f"The host answered with status {status}."
    if status == 429 or (status == 403 and is_limited):
        wait_s = _wait_s(headers, now_s)
        reason, text = "limited", f"The host limits requests for now{said}."
    elif status in (UNAUTHORIZED, 403):
        reason, text = "refused", f"The host refuses the token with status {status}{said}."
    elif status in (301, 302, 307, 308, 404, 410):
        reason = "missing"
        text = f"The host has no such thing, or the token may not see it: status {status}{said}."
    elif 400 <= status < 500 and status not in (408, 425):
        reason, text = "rejected", f"The host answered with status {status}{said}."
    return HostCallFailed(reason, text, wait_s, status=status, said=words)


def _wait_s(headers: Mapping[str, str], now_s: float) -> float:
    after = headers.get("retry-after", "")
    if after.isascii() and after.isdecimal():
        return min(float(after[:9]), MAX_HOST_WAIT_S)
    reset = headers.get("x-ratelimit-reset", headers.get("ratelimit-reset", ""))
    if reset.isascii() and reset.isdecimal():
        return min(max(float(reset[:12]) - now_s, 1.0), MAX_HOST_WAIT_S)
    return DEFAULT_LIMIT_WAIT_S


def _message(content: bytes) -> str:
    """What a host says of its refusal, in one short line."""
    try:
        found = msgspec.json.decode(content, type=_Said)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
    said = found.message or found.error
    return clip(" ".join(model_text(said).split()), 200) if isinstance(said, str) else ""

"""Slack's Web API as far as chatd uses it, and its files.

Slack is not trusted: replies are bounded, redirects are not followed, and a token goes to the
address of the API and to Slack's file hosts only. No error has a token in it.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, Literal, TypeVar

import aiohttp
import msgspec
from msgspec import Struct
from yarl import URL

from chatd.domain.deployment.slack import (
    EMAIL_SCOPE,
    POST_EVENT_TYPE,
    REQUIRED_SCOPES,
    Origin,
    SlackFile,
    is_slack_file_origin,
    read_slack,
)
from chatd.domain.deployment.slack_text import MAX_FALLBACK_CHARS, Block
from chatd.domain.errors import ChatdError
from chatd.domain.ports import Clock
from chatd.domain.text import clip, model_text
from chatd.guarded_dial import guarded_session, read_bounded

SLACK_TIMEOUT_S: Final = 20.0
"""For one request to Slack."""
MAX_SLACK_REPLY_BYTES: Final = 4 * 1024 * 1024
MAX_SLACK_WAIT_S: Final = 3600.0
DEFAULT_SLACK_WAIT_S: Final = 30.0
CHANNEL_INTERVAL_S: Final = 1.0
"""Between two messages or edits of this process in one channel: Slack takes about one a second."""
MAX_PACED_CHANNELS: Final = 1000
MAX_REPLY_PAGES: Final = 10
"""In which a message is looked for whose id was lost."""
REPLIES_PER_PAGE: Final = 200
FILE_TIMEOUT_S: Final = 120.0

T = TypeVar("T")
FailureReason = Literal["refused", "limited", "missing", "unavailable", "rejected"]
_REFUSED: Final = frozenset(
    {
        "invalid_auth",
        "not_authed",
        "account_inactive",
        "token_revoked",
        "token_expired",
        "missing_scope",
        "not_allowed_token_type",
        "no_permission",
        "org_login_required",
        "ekm_access_denied",
        "access_denied",
    }
)
_MISSING: Final = frozenset(
    {
        "channel_not_found",
        "not_in_channel",
        "is_archived",
        "message_not_found",
        "thread_not_found",
        "user_not_found",
        "user_not_in_channel",
        "users_not_found",
        "cant_update_message",
    }
)
_UNAVAILABLE: Final = frozenset(
    {
        "internal_error",
        "fatal_error",
        "service_unavailable",
        "request_timeout",
        "team_added_to_org",
        "accesslimited",
    }
)


class SlackCallFailed(ChatdError):
    """`refused`: the token is not accepted, or not for this. `limited`: ask after `wait_s`.
    `missing`: there is no such channel, message or user, or the bot may not see it.
    `unavailable`: no usable answer, ask again. `rejected`: the request itself is wrong."""

    code = "slack_failed"

    def __init__(
        self, reason: FailureReason, message: str, wait_s: float | None = None, error: str = ""
    ) -> None:
        super().__init__(message)
        self.reason: FailureReason = reason
        self.wait_s = wait_s
        self.error = error


class _Said(Struct, frozen=True, kw_only=True):
    ok: bool = False
    error: str = ""
    needed: str = ""


class _Metadata(Struct, frozen=True, kw_only=True):
    event_type: str = ""
    event_payload: Mapping[str, object] = {}


class _Reply(Struct, frozen=True, kw_only=True):
    ts: str = ""
    metadata: _Metadata = _Metadata()


class _Cursor(Struct, frozen=True, kw_only=True):
    next_cursor: str = ""


class _Replies(Struct, frozen=True, kw_only=True):
    messages: tuple[_Reply, ...] = ()
    has_more: bool = False
    response_metadata: _Cursor = _Cursor()


class _Posted(Struct, frozen=True, kw_only=True):
    ts: str


class _Socket(Struct, frozen=True, kw_only=True):
    url: str


class Bot(Struct, frozen=True, kw_only=True):
    """Of the bot token. `scopes` are those that it has."""

    team_id: str = ""
    team: str = ""
    user_id: str = ""
    user: str = ""
    scopes: frozenset[str] = frozenset()

    def missing_scopes(self, *, match_email: bool) -> Sequence[str]:
        wanted = REQUIRED_SCOPES | {EMAIL_SCOPE} if match_email else REQUIRED_SCOPES
        return sorted(wanted - self.scopes)


class _Profile(Struct, frozen=True, kw_only=True):
    email: str = ""
    real_name: str = ""
    display_name: str = ""


class SlackUser(Struct, frozen=True, kw_only=True):
    id: str = ""
    team_id: str = ""
    name: str = ""
    deleted: bool = False
    is_bot: bool = False
    is_stranger: bool = False
    is_restricted: bool = False
    is_email_confirmed: bool = False
    profile: _Profile = _Profile()

    @property
    def shown_name(self) -> str:
        return clip(self.profile.display_name or self.profile.real_name or self.name, 100)

    def confirmed_email(self, team_id: str) -> str:
        """Empty unless Slack has confirmed it for a full member of this workspace."""
        is_member = self.team_id == team_id and not (
            self.deleted or self.is_bot or self.is_stranger or self.is_restricted
        )
        return self.profile.email if is_member and self.is_email_confirmed else ""


class _UserInfo(Struct, frozen=True, kw_only=True):
    user: SlackUser


class _Pacing:
    """When this process may next write to each channel."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next: OrderedDict[str, float] = OrderedDict()

    async def wait(self, channel: str) -> None:
        now_s = self._clock.monotonic()
        at_s = max(self._next.get(channel, now_s), now_s)
        self._next[channel] = at_s + CHANNEL_INTERVAL_S
        self._next.move_to_end(channel)
        if len(self._next) > MAX_PACED_CHANNELS:
            self._next.popitem(last=False)
        if at_s > now_s:
            await self._clock.sleep(at_s - now_s, "slack_pacing")


class SlackRequests:
    """What all connections share: the address of the API and the pacing of channels."""

    def __init__(self, base: str, clock: Clock, *, allow_private: bool) -> None:
        self.base = base.rstrip("/")
        self.allow_private = allow_private
        self.pacing = _Pacing(clock)

    def api(self, bot_token: str, app_token: str = "") -> "SlackApi":
        return SlackApi(self, bot_token, app_token)


class SlackApi:
    """With the tokens of one connection. All raise SlackCallFailed."""

    def __init__(self, requests: SlackRequests, bot_token: str, app_token: str) -> None:
        self._requests = requests
        self._bot_token = bot_token
        self._app_token = app_token

    async def check(self) -> Bot:
        """Whose the bot token is."""
        content, headers = await self._send("auth.test", self._bot_token, {})
        bot = _decode(content, Bot)
        scopes = frozenset(headers.get("x-oauth-scopes", "").replace(" ", "").split(","))
        return msgspec.structs.replace(bot, scopes=scopes - {""})

    async def open_socket(self) -> str:
        """The address of a new connection of Socket Mode."""
        content, _ = await self._send("apps.connections.open", self._app_token, {})
        return _decode(content, _Socket).url

    async def user(self, user_id: str) -> SlackUser:
        content, _ = await self._send("users.info", self._bot_token, {"user": user_id}, form=True)
        return _decode(content, _UserInfo).user

    async def post(
        self, channel: str, thread_ts: str, blocks: Sequence[Block], text: str, post_id: str
    ) -> str:
        """The id of the new message, which carries `post_id`."""
        metadata = {"event_type": POST_EVENT_TYPE, "event_payload": {"id": post_id}}
        fields = {**_message(channel, blocks, text), "metadata": metadata}
        return await self._write("chat.postMessage", {**fields, "thread_ts": thread_ts})

    async def edit(self, channel: str, ts: str, blocks: Sequence[Block], text: str) -> None:
        await self._write("chat.update", {**_message(channel, blocks, text), "ts": ts})

    async def tell(
        self, channel: str, thread_ts: str | None, user: str, text: str, *, is_direct: bool
    ) -> None:
        """Only to this person."""
        fields: dict[str, object] = {"channel": channel, "text": text}
        if thread_ts is not None:
            fields["thread_ts"] = thread_ts
        if is_direct:
            await self._send("chat.postMessage", self._bot_token, fields)
        else:
            await self._send("chat.postEphemeral", self._bot_token, {**fields, "user": user})

    async def find_post(
        self, channel: str, thread_ts: str, post_id: str, oldest: str | None
    ) -> str | None:
        """The id of the message that carries `post_id`; it is not older than `oldest`."""
        cursor = ""
        for _ in range(MAX_REPLY_PAGES):
            fields: dict[str, object] = {
                "channel": channel,
                "ts": thread_ts,
                "limit": str(REPLIES_PER_PAGE),
                "include_all_metadata": "true",
            }
            if oldest is not None:
                fields |= {"oldest": oldest, "inclusive": "true"}
            if cursor:
                fields["cursor"] = cursor
            content, _ = await self._send(
                "conversations.replies", self._bot_token, fields, form=True
            )
            page = _decode(content, _Replies)
            for reply in page.messages:
                told = reply.metadata
                if told.event_type == POST_EVENT_TYPE and told.event_payload.get("id") == post_id:
                    return reply.ts
            cursor = page.response_metadata.next_cursor
            if not cursor:
                return None
        return None

    @asynccontextmanager
    async def download(self, file: SlackFile) -> AsyncGenerator[aiohttp.StreamReader]:
        """The bytes of a file, from Slack's hosts only."""
        url = file.url_private_download
        try:
            is_taken = is_slack_file_origin(_origin(url), _origin(self._requests.base))
        except ValueError:
            is_taken = False
        if not is_taken:
            raise SlackCallFailed("rejected", "The file is not on a host of Slack.")
        headers = {"authorization": f"Bearer {self._bot_token}"}
        try:
            async with (
                asyncio.timeout(FILE_TIMEOUT_S),
                guarded_session(allow_private=self._requests.allow_private) as session,
                session.get(url, headers=headers, allow_redirects=False) as reply,
            ):
                # Without the scope Slack answers with the page of a sign-in.
                is_page = reply.content_type == "text/html" and file.mimetype != "text/html"
                if reply.status != 200 or is_page:
                    raise SlackCallFailed("missing", "Slack does not give the file to the bot.")
                yield reply.content
        except TimeoutError:
            raise SlackCallFailed("unavailable", "The file did not arrive in time.") from None
        except (aiohttp.ClientError, OSError) as error:
            raise _unreachable(error) from None

    async def _write(self, method: str, fields: Mapping[str, object]) -> str:
        await self._requests.pacing.wait(str(fields["channel"]))
        content, _ = await self._send(method, self._bot_token, fields)
        return _decode(content, _Posted).ts

    async def _send(
        self, method: str, token: str, fields: Mapping[str, object], *, form: bool = False
    ) -> tuple[bytes, Mapping[str, str]]:
        """Methods that read take no JSON."""
        headers = {"authorization": f"Bearer {token}", "user-agent": "chatd"}
        if form:
            headers["content-type"] = "application/x-www-form-urlencoded"
            data = aiohttp.FormData({name: str(value) for name, value in fields.items()})()
        else:
            headers["content-type"] = "application/json; charset=utf-8"
            data = msgspec.json.encode(fields)
        try:
            async with (
                asyncio.timeout(SLACK_TIMEOUT_S),
                guarded_session(allow_private=self._requests.allow_private) as session,
                session.post(
                    f"{self._requests.base}/{method}",
                    data=data,
                    headers=headers,
                    allow_redirects=False,
                ) as reply,
            ):
                content = await read_bounded(reply, MAX_SLACK_REPLY_BYTES)
                if (error := _failure(method, reply.status, reply.headers, content)) is not None:
                    raise error
                return content, reply.headers
        except TimeoutError:
            text = f"Slack did not answer within {SLACK_TIMEOUT_S:.0f} seconds."
            raise SlackCallFailed("unavailable", text) from None
        except (aiohttp.ClientError, OSError) as error:
            raise _unreachable(error) from None
        except ValueError as error:
            raise SlackCallFailed("unavailable", f"Slack's reply: {error}.") from None


def _origin(url: str) -> Origin:
    """As it is requested. Raises ValueError."""
    read = URL(url)
    return read.scheme, read.host or "", read.port


def _message(channel: str, blocks: Sequence[Block], text: str) -> Mapping[str, object]:
    return {
        "channel": channel,
        "text": clip(text, MAX_FALLBACK_CHARS),
        "blocks": blocks,
        "unfurl_links": False,
        "unfurl_media": False,
    }


def _unreachable(error: Exception) -> SlackCallFailed:
    text = f"Slack cannot be reached: {clip(str(error), 200) or type(error).__name__}"
    return SlackCallFailed("unavailable", text)


def _failure(
    method: str, status: int, headers: Mapping[str, str], content: bytes
) -> SlackCallFailed | None:
    if status == 429:
        return _limited(headers)
    if status != 200:
        return SlackCallFailed("unavailable", f"Slack answered {method} with status {status}.")
    said = _decode(content, _Said)
    if said.ok:
        return None
    error = clip(" ".join(model_text(said.error).split()), 100) or "unknown_error"
    if error in ("ratelimited", "rate_limited"):
        return _limited(headers)
    if error in _REFUSED:
        needed = f" It needs the scope {clip(said.needed, 100)}." if said.needed else ""
        return SlackCallFailed(
            "refused", f"Slack refuses the token for {method}: {error}.{needed}", error=error
        )
    if error in _MISSING:
        text = f"Slack has no such thing for {method}, or the bot may not see it: {error}."
        return SlackCallFailed("missing", text, error=error)
    if error in _UNAVAILABLE:
        return SlackCallFailed("unavailable", f"Slack failed at {method}: {error}.", error=error)
    return SlackCallFailed("rejected", f"Slack refused {method}: {error}.", error=error)


def _limited(headers: Mapping[str, str]) -> SlackCallFailed:
    after = headers.get("retry-after", "")
    wait_s = DEFAULT_SLACK_WAIT_S
    if after.isascii() and after.isdecimal():
        wait_s = min(float(after[:9]), MAX_SLACK_WAIT_S)
    return SlackCallFailed("limited", "Slack limits requests for now.", wait_s)


def _decode(content: bytes, kind: type[T]) -> T:
    try:
        return read_slack(content, kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise SlackCallFailed("unavailable", "Slack's reply has another form.") from None

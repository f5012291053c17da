"""Slack's Web API, files and Socket Mode on loopback, as strict as the real ones.

They refuse a wrong token, a missing scope, unknown channels, messages and users, blocks beyond
Slack's limits, and arguments in a form that a method does not read. An event that is not
acknowledged within `ack_s` is delivered again, also over a later connection.
"""

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import WSMsgType, web

Json = dict[str, Any]
BOT_TOKEN: Final = "xoxb-1234-5678-AbCdEfGh"
APP_TOKEN: Final = "xapp-1-A012-3456-abcdef01"
TEAM: Final = "T0ACME"
BOT: Final = "U0BOT"
ADA: Final = "U0ADA"
EVE: Final = "U0EVE"
CHANNEL: Final = "C0GENERAL"
DIRECT: Final = "D0ADA"
SCOPES: Final = frozenset(
    {
        "app_mentions:read",
        "channels:history",
        "chat:write",
        "files:read",
        "groups:history",
        "im:history",
        "mpim:history",
        "users:read",
    }
)
_NEEDED: Final = {
    "chat.postMessage": "chat:write",
    "chat.update": "chat:write",
    "chat.postEphemeral": "chat:write",
    "conversations.replies": "channels:history",
    "users.info": "users:read",
}
_FORM_ONLY: Final = frozenset({"conversations.replies", "users.info"})


@dataclass
class Message:
    """`seen_by`: only this person sees it."""

    ts: str
    channel: str
    user: str
    text: str
    thread_ts: str | None = None
    blocks: list[Json] = field(default_factory=list[Json])
    metadata: Json | None = None
    edits: list[str] = field(default_factory=list[str])
    seen_by: str = ""

    def shown(self) -> str:
        """All text of its blocks, without buttons."""
        texts = [one["text"]["text"] for one in self.blocks if one["type"] == "section"]
        return "\n".join(texts) or self.text

    def buttons(self) -> dict[str, str]:
        """The values by action."""
        rows = [one["elements"] for one in self.blocks if one["type"] == "actions"]
        return {each["action_id"]: each.get("value", "") for row in rows for each in row}


class FakeSlack:
    """One workspace with the bot, Ada and Eve in one channel, and Ada's direct messages."""

    def __init__(self) -> None:
        self.url = ""
        self.tokens = {BOT_TOKEN}
        self.app_tokens = {APP_TOKEN}
        self.scopes = set(SCOPES)
        self.users: dict[str, Json] = {
            ADA: _user(ADA, "Ada", "ada@example.com"),
            EVE: _user(EVE, "Eve", "eve@example.com"),
            BOT: {**_user(BOT, "chatd", ""), "is_bot": True},
        }
        self.members = {CHANNEL: {ADA, EVE, BOT}, DIRECT: {ADA, BOT}}
        self.messages: list[Message] = []
        self.files: dict[str, bytes] = {}
        self.requests: list[tuple[str, Json]] = []
        self.limited: list[int] = []
        self.broken: list[int] = []
        self.lost: list[str] = []
        """The next request of each of these methods is done, but its reply is lost."""
        self.hold: dict[str, asyncio.Event] = {}
        self.sockets: list[web.WebSocketResponse] = []
        self.opened = 0
        self.team = TEAM
        self.ack_s = 3.0
        self.acks: dict[str, int] = {}
        self.deliveries = 0
        self._tickets: set[str] = set()
        self._clock = 1_700_000_000
        self._more = asyncio.Condition()
        self._base_url = ""

    # What people do

    async def say(
        self,
        text: str,
        *,
        user: str = ADA,
        channel: str = CHANNEL,
        thread: str | None = None,
        files: tuple[Json, ...] = (),
    ) -> str:
        """A message of a person, with its events; a mention has two. When it is acknowledged."""
        made = Message(self.next_ts(), channel, user, text, thread)
        self.messages.append(made)
        event: Json = {
            "type": "message",
            "user": user,
            "text": text,
            "ts": made.ts,
            "team": TEAM,
            "channel": channel,
            "channel_type": "im" if channel.startswith("D") else "channel",
            "event_ts": made.ts,
            **({} if thread is None else {"thread_ts": thread}),
            **({"subtype": "file_share", "files": list(files)} if files else {}),
        }
        events = [event]
        if f"<@{BOT}>" in text and not channel.startswith("D"):
            mention = {k: v for k, v in event.items() if k not in ("channel_type", "subtype")}
            events.insert(0, {**mention, "type": "app_mention"})
        for one in events:
            await self.deliver("events_api", self.event_callback(one))
        return made.ts

    def event_callback(self, event: Json) -> Json:
        return {
            "token": "verification",
            "team_id": TEAM,
            "api_app_id": "A0APP",
            "type": "event_callback",
            "event_id": f"Ev{secrets.token_hex(5).upper()}",
            "event_time": self._clock,
            "event": event,
            "authorizations": [{"team_id": TEAM, "user_id": BOT, "is_bot": True}],
        }

    def press_payload(self, message: Message, action: str, user: str = ADA) -> Json:
        value = message.buttons()[action]
        return {
            "type": "block_actions",
            "user": {"id": user, "username": user.lower(), "team_id": TEAM},
            "api_app_id": "A0APP",
            "container": {"type": "message", "message_ts": message.ts},
            "trigger_id": "1.2.3",
            "team": {"id": TEAM, "domain": "acme"},
            "channel": {"id": message.channel, "name": "general"},
            "message": {"ts": message.ts, "thread_ts": message.thread_ts, "user": BOT},
            "response_url": "https://hooks.slack.com/actions/x",
            "actions": [
                {
                    "action_id": action,
                    "block_id": "b",
                    "type": "button",
                    "value": value,
                    "action_ts": self.next_ts(),
                }
            ],
        }

    async def press(self, message: Message, action: str, user: str = ADA) -> None:
        await self.deliver("interactive", self.press_payload(message, action, user))

    # What is there

    def next_ts(self) -> str:
        self._clock += 1
        return f"{self._clock}.000100"

    def posted(self, thread: str | None = None) -> list[Message]:
        """The messages of the bot that all see, in one thread or in all."""
        return [
            one
            for one in self.messages
            if one.user == BOT and not one.seen_by and thread in (None, one.thread_ts)
        ]

    def told(self, user: str = ADA) -> list[str]:
        """What the bot told only this person."""
        return [one.text for one in self.messages if one.seen_by == user]

    def asked(self, method: str) -> int:
        return sum(1 for name, _ in self.requests if name == method)

    async def until(self, condition: Callable[[], bool], within_s: float = 30) -> None:
        """Wait for something that a request or a connection changes."""
        async with asyncio.timeout(within_s), self._more:
            await self._more.wait_for(condition)

    async def _changed(self) -> None:
        async with self._more:
            self._more.notify_all()

    # Socket Mode

    async def deliver(self, kind: str, payload: Json) -> str:
        """Until it is acknowledged."""
        envelope_id = f"env-{secrets.token_hex(6)}"
        attempt = 0
        async with asyncio.timeout(60):
            while envelope_id not in self.acks:
                await self.until(lambda: bool(self.sockets))
                envelope = {
                    "envelope_id": envelope_id,
                    "type": kind,
                    "payload": payload,
                    "accepts_response_payload": kind == "interactive",
                    **(
                        {"retry_attempt": attempt, "retry_reason": "timeout" if attempt else ""}
                        if kind == "events_api"
                        else {}
                    ),
                }
                socket = self.sockets[-1]
                self.deliveries += 1
                try:
                    await socket.send_json(envelope)
                    async with asyncio.timeout(self.ack_s), self._more:
                        await self._more.wait_for(
                            lambda s=socket: envelope_id in self.acks or s not in self.sockets
                        )
                except (TimeoutError, ConnectionError):
                    pass
                attempt += 1
        return envelope_id

    async def disconnect(self, reason: str) -> None:
        """Slack says that it will close the newest connection."""
        await self.sockets[-1].send_json({"type": "disconnect", "reason": reason})

    async def handle_socket(self, request: web.Request) -> web.StreamResponse:
        ticket = request.query.get("ticket", "")
        if ticket not in self._tickets:
            return web.Response(status=403)
        self._tickets.remove(ticket)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self.sockets.append(socket)
        self.opened += 1
        hello = {
            "type": "hello",
            "num_connections": len(self.sockets),
            "connection_info": {"app_id": "A0APP"},
            "debug_info": {"host": "applink", "approximate_connection_time": 18060},
        }
        try:
            await socket.send_json(hello)
            await self._changed()
            async for message in socket:
                if message.type is WSMsgType.TEXT:
                    said = json.loads(message.data)
                    assert set(said) <= {"envelope_id", "payload"}
                    known = str(said["envelope_id"])
                    self.acks[known] = self.acks.get(known, 0) + 1
                    await self._changed()
        finally:
            self.sockets.remove(socket)
            await self._changed()
        return socket

    # The Web API

    async def handle(self, request: web.Request) -> web.StreamResponse:
        method = request.match_info["method"]
        fields, problem = await _read(request, method)
        self.requests.append((method, fields))
        await self._changed()
        if (gate := self.hold.get(method)) is not None:
            await gate.wait()
        if self.broken:
            return web.Response(status=self.broken.pop(0), text="<html>down</html>")
        if self.limited:
            wait = str(self.limited.pop(0))
            body = {"ok": False, "error": "ratelimited"}
            return web.json_response(body, status=429, headers={"retry-after": wait})
        if problem:
            reply: Json = {"ok": False, "error": problem}
        else:
            reply = self._answer(method, request.headers.get("authorization", ""), fields)
        await self._changed()
        if method in self.lost:
            self.lost.remove(method)
            assert request.transport is not None
            request.transport.abort()
        scopes = {"x-oauth-scopes": ",".join(sorted(self.scopes))}
        return web.json_response(reply, headers=scopes)

    def _answer(self, method: str, authorization: str, fields: Json) -> Json:
        token = authorization.removeprefix("Bearer ")
        if not authorization.startswith("Bearer ") or not token:
            return _error("not_authed")
        if method == "apps.connections.open":
            if token not in self.app_tokens:
                is_bot = token in self.tokens
                return _error("not_allowed_token_type" if is_bot else "invalid_auth")
            ticket = secrets.token_hex(8)
            self._tickets.add(ticket)
            address = self._base_url.replace("http://", "ws://")
            return {"ok": True, "url": f"{address}/link?ticket={ticket}"}
        if token not in self.tokens:
            return _error("not_allowed_token_type" if token in self.app_tokens else "invalid_auth")
        needed = _NEEDED.get(method)
        if needed is not None and needed not in self.scopes:
            provided = ",".join(sorted(self.scopes))
            return {**_error("missing_scope"), "needed": needed, "provided": provided}
        answers: dict[str, Callable[[Json], Json]] = {
            "auth.test": self._auth_test,
            "users.info": self._users_info,
            "chat.postMessage": self._post,
            "chat.postEphemeral": self._post_ephemeral,
            "chat.update": self._update,
            "conversations.replies": self._replies,
        }
        answer = answers.get(method)
        return _error("unknown_method") if answer is None else answer(fields)

    def _auth_test(self, _fields: Json) -> Json:
        return {
            "ok": True,
            "url": "https://acme.slack.com/",
            "team": "Acme",
            "user": "chatd",
            "team_id": self.team,
            "user_id": BOT,
            "bot_id": "B0BOT",
        }

    def _users_info(self, fields: Json) -> Json:
        user = self.users.get(str(fields.get("user")))
        if user is None:
            return _error("user_not_found")
        shown = {**user, "profile": dict(user["profile"])}
        if "users:read.email" not in self.scopes:
            shown["profile"].pop("email", None)
        return {"ok": True, "user": shown}

    def _place(self, fields: Json) -> str | None:
        """What is wrong with the channel, the text or the blocks."""
        channel = fields.get("channel")
        if channel not in self.members:
            return "channel_not_found"
        if BOT not in self.members[channel]:
            return "not_in_channel"
        if not fields.get("text") and not fields.get("blocks"):
            return "no_text"
        if len(str(fields.get("text", ""))) > 40_000:
            return "msg_too_long"
        return check_blocks(fields.get("blocks", []))

    def _post(self, fields: Json) -> Json:
        if (problem := self._place(fields)) is not None:
            return _error(problem)
        metadata = fields.get("metadata")
        if metadata is not None and (
            not isinstance(metadata.get("event_type"), str)
            or not isinstance(metadata.get("event_payload"), dict)
        ):
            return _error("invalid_metadata_format")
        made = Message(
            self.next_ts(),
            str(fields["channel"]),
            BOT,
            str(fields.get("text", "")),
            fields.get("thread_ts"),
            list(fields.get("blocks", [])),
            metadata,
        )
        self.messages.append(made)
        return {"ok": True, "channel": made.channel, "ts": made.ts, "message": {"ts": made.ts}}

    def _post_ephemeral(self, fields: Json) -> Json:
        if (problem := self._place(fields)) is not None:
            return _error(problem)
        if fields.get("user") not in self.members[fields["channel"]]:
            return _error("user_not_in_channel")
        made = Message(self.next_ts(), fields["channel"], BOT, fields["text"])
        made.seen_by, made.thread_ts = str(fields["user"]), fields.get("thread_ts")
        self.messages.append(made)
        return {"ok": True, "message_ts": made.ts}

    def _update(self, fields: Json) -> Json:
        if (problem := self._place(fields)) is not None:
            return _error(problem)
        found = [
            one
            for one in self.messages
            if (one.channel, one.ts) == (fields["channel"], fields.get("ts")) and not one.seen_by
        ]
        if not found:
            return _error("message_not_found")
        if found[0].user != BOT:
            return _error("cant_update_message")
        found[0].edits.append(found[0].shown())
        found[0].text, found[0].blocks = str(fields["text"]), list(fields.get("blocks", []))
        return {"ok": True, "channel": found[0].channel, "ts": found[0].ts, "text": ""}

    def _replies(self, fields: Json) -> Json:
        if fields.get("channel") not in self.members:
            return _error("channel_not_found")
        limit = int(fields.get("limit", "100"))
        if not 1 <= limit <= 1000:
            return _error("invalid_limit")
        oldest = str(fields.get("oldest", "0"))
        thread = [
            one
            for one in self.messages
            if fields["ts"] in (one.ts, one.thread_ts)
            and not one.seen_by
            and (one.ts == fields["ts"] or one.ts >= oldest)
        ]
        if not thread:
            return _error("thread_not_found")
        start = int(str(fields.get("cursor", "at-0")).removeprefix("at-"))
        page, rest = thread[start : start + limit], thread[start + limit :]
        wants_metadata = fields.get("include_all_metadata") == "true"
        shown = [
            {
                "type": "message",
                "user": one.user,
                "ts": one.ts,
                "text": one.text,
                **({"metadata": one.metadata} if wants_metadata and one.metadata else {}),
            }
            for one in page
        ]
        cursor = f"at-{start + limit}" if rest else ""
        more = {"has_more": bool(rest), "response_metadata": {"next_cursor": cursor}}
        return {"ok": True, "messages": shown, **more}

    # Files

    def add_file(self, name: str, mimetype: str, content: bytes) -> Json:
        file_id = f"F{secrets.token_hex(4).upper()}"
        self.files[file_id] = content
        url = f"{self._base_url}/files/{file_id}"
        return {
            "id": file_id,
            "name": name,
            "mimetype": mimetype,
            "size": len(content),
            "url_private_download": url,
        }

    async def handle_file(self, request: web.Request) -> web.Response:
        """Without the right token Slack answers with the page of a sign-in."""
        self.requests.append(("files", {}))
        await self._changed()
        if (gate := self.hold.get("files")) is not None:
            await gate.wait()
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        content = self.files.get(request.match_info["id"])
        if token not in self.tokens or "files:read" not in self.scopes or content is None:
            return web.Response(text="<html>Sign in</html>", content_type="text/html")
        return web.Response(body=content, content_type="application/octet-stream")

    def serve_at(self, base_url: str) -> None:
        self._base_url, self.url = base_url, f"{base_url}/api"


def check_blocks(blocks: list[Json]) -> str | None:
    """What Slack refuses."""
    if len(blocks) > 50:
        return "invalid_blocks"
    for block in blocks:
        if block.get("type") == "section":
            text = block["text"]
            if text["type"] not in ("mrkdwn", "plain_text") or not 1 <= len(text["text"]) <= 3000:
                return "invalid_blocks"
        elif block.get("type") == "actions":
            elements = block["elements"]
            actions = [each["action_id"] for each in elements]
            if not 1 <= len(elements) <= 25 or len(set(actions)) != len(actions):
                return "invalid_blocks"
            if any(_is_bad_button(each) for each in elements):
                return "invalid_blocks"
        else:
            return "invalid_blocks_format"
    return None


def _is_bad_button(button: Json) -> bool:
    label = button["text"]
    return (
        button["type"] != "button"
        or label["type"] != "plain_text"
        or not 1 <= len(label["text"]) <= 75
        or len(button.get("value", "")) > 2000
        or len(button["action_id"]) > 255
        or len(button.get("url", "")) > 3000
        or button.get("style", "primary") not in ("primary", "danger")
    )


async def _read(request: web.Request, method: str) -> tuple[Json, str]:
    """The arguments, and what is wrong with their form."""
    if request.content_type == "application/x-www-form-urlencoded":
        return {name: str(value) for name, value in (await request.post()).items()}, ""
    if request.content_type != "application/json":
        return {}, "invalid_post_type"
    if method in _FORM_ONLY:
        return {}, "invalid_arguments"
    return await request.json(), ""


def _error(code: str) -> Json:
    return {"ok": False, "error": code}


def _user(user_id: str, name: str, email: str) -> Json:
    return {
        "id": user_id,
        "team_id": TEAM,
        "name": name.lower(),
        "deleted": False,
        "is_bot": False,
        "is_restricted": False,
        "is_email_confirmed": True,
        "profile": {"real_name": name, "display_name": name, "email": email},
    }


@asynccontextmanager
async def running_slack(slack: FakeSlack) -> AsyncGenerator[None]:
    app = web.Application()
    app.router.add_post("/api/{method}", slack.handle)
    app.router.add_get("/link", slack.handle_socket)
    app.router.add_get("/files/{id}", slack.handle_file)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    slack.serve_at(f"http://127.0.0.1:{runner.addresses[0][1]}")
    try:
        yield
    finally:
        for gate in slack.hold.values():
            gate.set()
        for socket in [*slack.sockets]:
            await socket.close()
        await runner.cleanup()

"""A client of `/mcp` that sends exactly what a test wants, and reads the events of long calls."""

import asyncio
import io
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

import msgspec
from aiohttp import ClientResponse, ClientSession
from msgspec import Struct

from tests.support.api.server import ME, authorized

Json = dict[str, object]

HANDSHAKE = "2025-11-25"
STATELESS = "2026-07-28"
ACCEPT = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


class RpcReply(Struct, frozen=True, kw_only=True):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Json:
        return msgspec.json.decode(self.body, type=Json)

    @property
    def result(self) -> Json:
        assert "result" in self.json, self.body
        return msgspec.convert(self.json["result"], Json)

    @property
    def error(self) -> tuple[int, object]:
        """The status, and the code of the error."""
        found = msgspec.convert(self.json["error"], Json)
        assert isinstance(found["message"], str)
        return self.status, found["code"]


class SentEvent(Struct, frozen=True, kw_only=True):
    id: str = ""
    data: str = ""
    retry: int | None = None

    @property
    def json(self) -> Json:
        return msgspec.json.decode(self.data, type=Json)


class CallEventReader:
    """The events of one call, in order."""

    def __init__(self, response: ClientResponse) -> None:
        self.response = response

    async def next(self) -> SentEvent | None:
        """None at the end of the stream."""
        fields: dict[str, str] = {}
        async with asyncio.timeout(30):
            while line := (await self.response.content.readline()).decode():
                name, _, value = line.rstrip("\n").partition(":")
                if name:
                    fields[name] = value.strip()
                elif fields:
                    retry = fields.get("retry")
                    return SentEvent(
                        id=fields.get("id", ""),
                        data=fields.get("data", ""),
                        retry=None if retry is None else int(retry),
                    )
                elif not line.strip() and not line:
                    return None
        return None

    async def answer(self) -> Json:
        """The result at the end of the call."""
        while (event := await self.next()) is not None:
            if event.data and "result" in event.json:
                return msgspec.convert(event.json["result"], Json)
        raise AssertionError("the stream ended without an answer")


def request_body(method: str, params: Json | None = None, request_id: object = 1) -> Json:
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params or {}}


def call_body(tool: str, arguments: Json, request_id: object = 1, **meta: object) -> Json:
    params: Json = {"name": tool, "arguments": arguments}
    return request_body("tools/call", {**params, "_meta": meta} if meta else params, request_id)


class RawClient:
    """Speaks the version of the handshake; `session` is sent if it is set."""

    def __init__(self, http: ClientSession, token: str | None = ME) -> None:
        self._http = http
        self._token = token
        self.session: str | None = None

    def headers(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        session = {} if self.session is None else {"Mcp-Session-Id": self.session}
        version = {"Mcp-Protocol-Version": HANDSHAKE}
        return ACCEPT | authorized(self._token) | version | session | dict(more or {})

    async def post(self, body: object, headers: Mapping[str, str] | None = None) -> RpcReply:
        """`body` is sent as JSON, or as it is if it is bytes."""
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        return await self.ask("POST", data, headers)

    async def ask(
        self, method: str, data: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> RpcReply:
        async with (
            asyncio.timeout(30),
            self._http.request(
                method,
                "/mcp",
                data=None if data is None else io.BytesIO(data),
                headers=self.headers(headers),
            ) as reply,
        ):
            found = {name.lower(): value for name, value in reply.headers.items()}
            return RpcReply(status=reply.status, headers=found, body=await reply.read())

    async def initialize(self) -> Json:
        client = {"name": "a test", "version": "1"}
        params: Json = {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": client}
        reply = await self.post(request_body("initialize", params))
        self.session = reply.headers["mcp-session-id"]
        return reply.result

    async def call(self, tool: str, arguments: Json, request_id: object = 1) -> Json:
        """The result of a call that is answered at once."""
        return (await self.post(call_body(tool, arguments, request_id))).result

    async def run(self, tool: str, arguments: Json, request_id: object = 1) -> Json:
        """The structured result of a call, which succeeds."""
        result = await self.call(tool, arguments, request_id)
        assert not result["isError"], result
        return msgspec.convert(result["structuredContent"], Json)

    @asynccontextmanager
    async def stream(
        self, body: object, headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[CallEventReader]:
        """A call that takes long."""
        data, sent = msgspec.json.encode(body), self.headers(headers)
        async with self._http.post("/mcp", data=data, headers=sent) as response:
            assert response.status == 200, await response.read()
            assert response.content_type == "text/event-stream"
            yield CallEventReader(response)

    @asynccontextmanager
    async def resume(self, last_event_id: str) -> AsyncGenerator[CallEventReader]:
        sent = self.headers({"Last-Event-ID": last_event_id})
        async with self._http.get("/mcp", headers=sent) as response:
            assert response.status == 200, await response.read()
            yield CallEventReader(response)


def stateless_body(method: str, params: Json | None = None, request_id: object = 1) -> Json:
    meta: Json = {
        "io.modelcontextprotocol/protocolVersion": STATELESS,
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    return request_body(method, {**(params or {}), "_meta": meta}, request_id)


def stateless_headers(method: str, name: str | None = None) -> dict[str, str]:
    named = {} if name is None else {"Mcp-Name": name}
    return {"Mcp-Protocol-Version": STATELESS, "Mcp-Method": method} | named


def error_text(result: Json) -> str:
    """The text of a result that is an error."""
    assert result["isError"], result
    (only,) = msgspec.convert(result["content"], list[dict[str, str]])
    return only["text"]

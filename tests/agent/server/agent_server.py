"""An agent with its HTTP server in this process, and a client that signs its requests."""

import asyncio
import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from chatd.agent.main import AgentProcess, parse_config
from chatd.agent.server.auth import RequestClaim, digest, reply_mac, signed_headers
from chatd.clock import SystemClock

KEY = b"k" * 32
TIMEOUT_S = 30.0


class HttpReply:
    def __init__(self, raw: bytes) -> None:
        head, _, self.body = raw.partition(b"\r\n\r\n")
        first, *rest = head.decode().split("\r\n")
        self.status = int(first.split(" ")[1])
        self.headers = {name.lower(): value for name, _, value in (x.partition(": ") for x in rest)}

    @property
    def json(self) -> dict[str, object]:
        return json.loads(self.body)


class AgentServer:
    """An agent in this process, and a signing client."""

    def __init__(self, directory: Path) -> None:
        self.home = directory / "home"
        self.home.mkdir()
        self.socket = directory / "run" / "agent.sock"
        config: dict[str, object] = {
            "agent_id": "a",
            "dial_key": KEY.hex(),
            "socket": str(self.socket),
            "run_dir": str(directory / "run"),
            "home": str(self.home),
        }
        self.agent = AgentProcess(parse_config(json.dumps(config).encode()))
        self.boot_id = "-"

    async def send(self, raw: bytes) -> HttpReply:
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await asyncio.open_unix_connection(str(self.socket))
            try:
                writer.write(raw)
                return HttpReply(await reader.read())
            finally:
                writer.close()

    def signed(
        self, method: str, target: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> bytes:
        sent = {name.lower(): value for name, value in (headers or {}).items()}
        claim = RequestClaim(
            method,
            target,
            "a",
            self.boot_id,
            int(SystemClock().now().timestamp()),
            secrets.token_hex(16),
            digest(body),
            signed_headers(sent),
        )
        sent |= {"authorization": claim.authorization(KEY), "connection": "close"}
        sent["content-length"] = str(len(body))
        lines = [f"{method} {target} HTTP/1.1", *(f"{n}: {v}" for n, v in sent.items()), "", ""]
        return "\r\n".join(lines).encode() + body

    async def request(
        self, method: str, target: str, body: object = b"", headers: Mapping[str, str] | None = None
    ) -> HttpReply:
        """Sign the request and check the signature of the reply."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = self.signed(method, target, raw, headers)
        reply = await self.send(request)
        nonce = request.split(b"nonce=")[1][:32].decode()
        boot = reply.headers["chatd-boot"]
        mac = reply_mac(KEY, nonce=nonce, status=reply.status, boot=boot, body=reply.body)
        assert reply.headers["chatd-mac"] == mac
        return reply

    async def api(
        self, method: str, target: str, body: object = b"", headers: Mapping[str, str] | None = None
    ) -> HttpReply:
        return await self.request(method, f"/api/v0/{target}", body, headers)

    def path(self, name: str) -> str:
        return quote(str(self.home / name), safe="")

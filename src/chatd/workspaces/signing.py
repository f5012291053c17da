"""The server's side of the agreement with agents: keys, signed requests, replies that are checked.

What is signed is said in `chatd.agent.server.auth`, which both sides share.
"""

import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping

from msgspec import Struct

from chatd.agent.server.auth import (
    NO_BOOT,
    RequestClaim,
    digest,
    line_mac,
    reply_mac,
    signed_headers,
)
from chatd.domain.errors import ChatdError
from chatd.domain.workspace.entities import AgentId


class Untrusted(ChatdError):
    """A reply that the agent we meant has not given."""

    code = "agent_untrusted"


def dial_key(secret: bytes, agent_id: AgentId) -> bytes:
    """Made from the server's secret whenever it is needed, so that it is stored nowhere."""
    return hmac.new(secret, f"dial:{agent_id}".encode(), hashlib.sha256).digest()


class Signed(Struct, frozen=True, kw_only=True):
    """The headers to send, and what the reply must refer to."""

    headers: Mapping[str, str]
    nonce: str


class Signer:
    """Signs for one agent. `now` is wall time in seconds: the agent compares it with its own."""

    def __init__(self, agent_id: AgentId, key: bytes, now: Callable[[], float]) -> None:
        self._agent_id = str(agent_id)
        self._key = key
        self._now = now

    def sign(
        self,
        method: str,
        target: str,
        *,
        boot: str = NO_BOOT,
        headers: Mapping[str, str],
        body: bytes,
    ) -> Signed:
        nonce = secrets.token_hex(16)
        claim = RequestClaim(
            method=method,
            target=target,
            agent=self._agent_id,
            boot=boot,
            at=int(self._now()),
            nonce=nonce,
            body=digest(body),
            headers=signed_headers({name.lower(): value for name, value in headers.items()}),
        )
        return Signed(
            headers={**headers, "Authorization": claim.authorization(self._key)}, nonce=nonce
        )

    def verify(self, nonce: str, status: int, headers: Mapping[str, str], body: bytes) -> str:
        """The boot that has replied."""
        boot = headers.get("Chatd-Boot", "")
        expected = reply_mac(self._key, nonce=nonce, status=status, boot=boot, body=body)
        given = headers.get("Chatd-Mac", "")
        if not hmac.compare_digest(expected.encode(), given.encode("utf-8", "surrogateescape")):
            raise Untrusted("the reply is not signed with the agent's key")
        return boot

    def verify_line(self, nonce: str, number: int, *, boot: str, text: bytes, mac: str) -> None:
        """One line of a reply that goes on; they are counted from 1."""
        expected = line_mac(self._key, nonce=nonce, number=number, boot=boot, text=text)
        if not hmac.compare_digest(expected.encode(), mac.encode("utf-8", "surrogateescape")):
            raise Untrusted("a line of the reply is not signed with the agent's key")

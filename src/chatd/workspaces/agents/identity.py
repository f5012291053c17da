"""Keys and signatures between this server and its workspace agents, and the files they rest on.

`chatd.agent.server.auth` defines what is signed; the agent uses the same module. The host id and
the server's secret are files in the data directory, created once even if several servers start at
the same time.
"""

import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

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
from chatd.secret_files import load_or_create

HOST_ID_FILE: Final = "host-id"
SECRET_FILE: Final = "secret"
_MIN_SECRET_CHARS: Final = 16


class UntrustedReply(ChatdError):
    """The reply was not signed by the agent that was asked."""

    code = "agent_untrusted"


def host_id(data_dir: Path) -> str:
    """Servers that share a data directory share its workspaces, and so its host id."""
    return _read_or_create(data_dir / HOST_ID_FILE)


def server_secret(given: str | None, data_dir: Path) -> bytes:
    """The secret from `CHATD_SECRET`, which several hosts must share, else that of the file."""
    text = _read_or_create(data_dir / SECRET_FILE) if given is None else given.strip()
    if len(text) < _MIN_SECRET_CHARS:
        name = data_dir / SECRET_FILE if given is None else "CHATD_SECRET"
        raise ChatdError(
            f"{name} is too short: at least {_MIN_SECRET_CHARS} characters", code="settings"
        )
    return text.encode()


def derive_agent_key(secret: bytes, agent_id: AgentId) -> bytes:
    """Derived whenever it is needed, so that the key is stored nowhere."""
    return hmac.new(secret, f"dial:{agent_id}".encode(), hashlib.sha256).digest()


class SignedRequest(Struct, frozen=True, kw_only=True):
    """The headers to send, and the nonce that the reply's signature must cover."""

    headers: Mapping[str, str]
    nonce: str


class AgentSigner:
    """Signs requests to one agent and verifies its replies.

    `now` returns wall time in seconds; the agent compares it with its own clock.
    """

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
    ) -> SignedRequest:
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
        return SignedRequest(
            headers={**headers, "Authorization": claim.authorization(self._key)}, nonce=nonce
        )

    def verify(self, nonce: str, status: int, headers: Mapping[str, str], body: bytes) -> str:
        """Return the boot id of the run that replied. Raises UntrustedReply."""
        boot = headers.get("Chatd-Boot", "")
        expected = reply_mac(self._key, nonce=nonce, status=status, boot=boot, body=body)
        given = headers.get("Chatd-Mac", "")
        if not hmac.compare_digest(expected.encode(), given.encode("utf-8", "surrogateescape")):
            raise UntrustedReply("the reply is not signed with the agent's key")
        return boot

    def verify_line(self, nonce: str, number: int, *, boot: str, text: bytes, mac: str) -> None:
        """Verify one line of a streamed reply; the first has number 1. Raises UntrustedReply."""
        expected = line_mac(self._key, nonce=nonce, number=number, boot=boot, text=text)
        if not hmac.compare_digest(expected.encode(), mac.encode("utf-8", "surrogateescape")):
            raise UntrustedReply("a line of the reply is not signed with the agent's key")


def _read_or_create(path: Path) -> str:
    try:
        return load_or_create(path, lambda: secrets.token_hex(32))
    except OSError as error:
        raise ChatdError(f"cannot create or read {path}: {error.strerror}") from error

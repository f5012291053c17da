"""Signatures of requests and replies, shared by the agent and the server.

One key, which the server gives the agent at its start, signs both directions. A request names the
agent, its boot and a nonce, so it cannot be replayed; the body's hash is signed too, so that the
request can be verified before its body is read.

    Authorization: Chatd1 agent=..;boot=..;at=<unix s>;nonce=<hex>;body=<sha256>;mac=<hex>
    Chatd-Boot, Chatd-Mac: on every reply to a correctly signed request
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from chatd.agent.errors import AgentError

SCHEME = "Chatd1"
MAX_CLOCK_SKEW_S = 60
MAX_NONCES = 200_000
NO_BOOT = "-"
"""The boot id of a request that asks for the boot id."""

SIGNED_HEADERS = ("chatd-chat-id", "chatd-ancestor-chat-ids", "chatd-epoch", "idempotency-key")
"""Signed with the request, in this order: they say for which chat the request acts."""

_FORM = re.compile(
    SCHEME + r" agent=([A-Za-z0-9_-]{1,64});boot=([A-Za-z0-9_-]{1,64});at=([0-9]{1,12})"
    r";nonce=([0-9a-f]{32});body=([0-9a-f]{64});mac=([0-9a-f]{64})"
)


@dataclass(frozen=True)
class RequestClaim:
    """The signed facts of a request."""

    method: str
    target: str
    agent: str
    boot: str
    at: int
    nonce: str
    body: str
    headers: tuple[str, ...]

    def mac(self, key: bytes) -> str:
        words = ["request", self.method, self.target, self.agent, self.boot, str(self.at)]
        return _mac(key, [*words, self.nonce, *self.headers, self.body])

    def authorization(self, key: bytes) -> str:
        return (
            f"{SCHEME} agent={self.agent};boot={self.boot};at={self.at}"
            f";nonce={self.nonce};body={self.body};mac={self.mac(key)}"
        )


def signed_headers(headers: Mapping[str, str]) -> tuple[str, ...]:
    """The signed values of headers with lower-case names."""
    return tuple(headers.get(name, "") for name in SIGNED_HEADERS)


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def reply_mac(key: bytes, *, nonce: str, status: int, boot: str, body: bytes) -> str:
    return _mac(key, ["reply", nonce, str(status), boot, digest(body)])


def line_mac(key: bytes, *, nonce: str, number: int, boot: str, text: bytes) -> str:
    """Sign one line of a streamed reply; the first line has number 1."""
    return _mac(key, ["line", nonce, str(number), boot, digest(text)])


def _mac(key: bytes, words: list[str]) -> str:
    return hmac.new(key, "\n".join(words).encode(), hashlib.sha256).hexdigest()


class RequestVerifier:
    """Accepts requests signed with the key, each nonce once."""

    def __init__(
        self,
        *,
        key: bytes,
        agent_id: str,
        boot_id: str,
        now: Callable[[], float],
        max_nonces: int = MAX_NONCES,
    ) -> None:
        self._key = key
        self._agent_id = agent_id
        self._now = now
        self._max_nonces = max_nonces
        # Nonce -> expiry. Only nonces of correctly signed requests, so only the server adds any.
        self._seen: OrderedDict[str, float] = OrderedDict()
        self.boot_id = boot_id

    def read_claim(self, method: str, target: str, headers: Mapping[str, str]) -> RequestClaim:
        """The claim, if it is signed with the key. It may still be late, or for another boot."""
        match = _FORM.fullmatch(headers.get("authorization", ""))
        if match is None:
            raise AgentError(401, "the request is not signed", code="unsigned")
        agent, boot, at, nonce, body, mac = match.groups()
        claim = RequestClaim(
            method, target, agent, boot, int(at), nonce, body, signed_headers(headers)
        )
        if not hmac.compare_digest(claim.mac(self._key), mac):
            raise AgentError(401, "the request is not signed with this agent's key", code="bad_mac")
        return claim

    def verify(self, claim: RequestClaim, *, any_boot: bool = False) -> None:
        """Refuse a signed claim for another agent, another time, another boot, or a replay."""
        now = self._now()
        if claim.agent != self._agent_id:
            raise AgentError(401, "the request is for another agent", code="wrong_agent")
        if abs(now - claim.at) > MAX_CLOCK_SKEW_S:
            # The refusal is signed: the server follows this clock and asks again.
            text = f"the clocks differ by more than {MAX_CLOCK_SKEW_S} s"
            raise AgentError(401, text, code="clock_skew", now=int(now))
        if claim.boot != self.boot_id and not (any_boot and claim.boot == NO_BOOT):
            raise AgentError(409, "the agent was restarted", code="agent_rebooted")
        self._add_nonce(claim, now)

    def sign_reply(self, claim: RequestClaim, status: int, body: bytes) -> dict[str, str]:
        """The headers that sign a reply."""
        boot = self.boot_id
        mac = reply_mac(self._key, nonce=claim.nonce, status=status, boot=boot, body=body)
        return {"Chatd-Boot": boot, "Chatd-Mac": mac}

    def sign_line(self, claim: RequestClaim, number: int, text: bytes) -> str:
        """The mac of one line of a stream."""
        return line_mac(self._key, nonce=claim.nonce, number=number, boot=self.boot_id, text=text)

    def _add_nonce(self, claim: RequestClaim, now: float) -> None:
        # Oldest first. A nonce added while the clock was fast stays longer than needed.
        while self._seen:
            nonce, until = next(iter(self._seen.items()))
            if until >= now:
                break
            del self._seen[nonce]
        if claim.nonce in self._seen:
            raise AgentError(401, "the request was received before", code="replayed")
        if len(self._seen) >= self._max_nonces:
            # If the clock was set back, the first ones expire late and hide expired ones.
            self._seen = OrderedDict(each for each in self._seen.items() if each[1] >= now)
        if len(self._seen) >= self._max_nonces:
            raise AgentError(503, "too many requests in two minutes", code="busy")
        self._seen[claim.nonce] = now + 2 * MAX_CLOCK_SKEW_S

"""Who may ask the agent, and how a reply proves that the agent gave it.

One key, shared with the server when the agent is started, signs both ways. A request names its
agent, the agent's boot and a nonce, so it cannot be replayed; what it says of its body is signed
too, so it is judged before any of the body is read. Owns the words that are signed and the memory
of nonces; knows no sockets.

    Authorization: Chatd1 agent=..;boot=..;at=<unix s>;nonce=<hex>;body=<sha256>;mac=<hex>
    Chatd-Boot, Chatd-Mac: on every reply to a request that was rightly signed
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
"""What a request says that is meant to learn the boot."""

SIGNED_HEADERS = ("chatd-chat-id", "chatd-ancestor-chat-ids", "chatd-epoch", "idempotency-key")
"""On whose behalf is as good as what: these are signed with the request, in this order."""

_FORM = re.compile(
    SCHEME + r" agent=([A-Za-z0-9_-]{1,64});boot=([A-Za-z0-9_-]{1,64});at=([0-9]{1,12})"
    r";nonce=([0-9a-f]{32});body=([0-9a-f]{64});mac=([0-9a-f]{64})"
)


@dataclass(frozen=True)
class RequestClaim:
    """What a request says of itself, all but the key."""

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
    """The values that are signed, from headers by their lower-case names."""
    return tuple(headers.get(name, "") for name in SIGNED_HEADERS)


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def reply_mac(key: bytes, *, nonce: str, status: int, boot: str, body: bytes) -> str:
    return _mac(key, ["reply", nonce, str(status), boot, digest(body)])


def line_mac(key: bytes, *, nonce: str, number: int, boot: str, text: bytes) -> str:
    """For one line of a reply that has no end; the first has number 1."""
    return _mac(key, ["line", nonce, str(number), boot, digest(text)])


def _mac(key: bytes, words: list[str]) -> str:
    return hmac.new(key, "\n".join(words).encode(), hashlib.sha256).hexdigest()


class RequestVerifier:
    """Admits requests of whoever has the key, each once."""

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
        # Nonce -> when it may be forgotten. Only rightly signed ones, so only the server fills it.
        self._seen: OrderedDict[str, float] = OrderedDict()
        self.boot_id = boot_id

    def read_claim(self, method: str, target: str, headers: Mapping[str, str]) -> RequestClaim:
        """The claim, if it is signed with our key. It may still be late, or for another boot."""
        match = _FORM.fullmatch(headers.get("authorization", ""))
        if match is None:
            raise AgentError(401, "this agent answers only to signed requests", code="unsigned")
        agent, boot, at, nonce, body, mac = match.groups()
        claim = RequestClaim(
            method, target, agent, boot, int(at), nonce, body, signed_headers(headers)
        )
        if not hmac.compare_digest(claim.mac(self._key), mac):
            raise AgentError(401, "the request is not signed with this agent's key", code="bad_mac")
        return claim

    def verify(self, claim: RequestClaim, *, any_boot: bool = False) -> None:
        """Refuse what is signed but not for here, not for now, or not for the first time."""
        now = self._now()
        if claim.agent != self._agent_id:
            raise AgentError(401, "the request is meant for another agent", code="wrong_agent")
        if abs(now - claim.at) > MAX_CLOCK_SKEW_S:
            raise AgentError(
                401, f"the clocks differ by more than {MAX_CLOCK_SKEW_S} s", code="clock_skew"
            )
        if claim.boot != self.boot_id and not (any_boot and claim.boot == NO_BOOT):
            raise AgentError(409, "the agent has been restarted since", code="agent_rebooted")
        self._remember(claim, now)

    def sign_reply(self, claim: RequestClaim, status: int, body: bytes) -> dict[str, str]:
        """The headers that make a reply ours."""
        boot = self.boot_id
        mac = reply_mac(self._key, nonce=claim.nonce, status=status, boot=boot, body=body)
        return {"Chatd-Boot": boot, "Chatd-Mac": mac}

    def sign_line(self, claim: RequestClaim, number: int, text: bytes) -> str:
        """The mac of one line of a stream."""
        return line_mac(self._key, nonce=claim.nonce, number=number, boot=self.boot_id, text=text)

    def _remember(self, claim: RequestClaim, now: float) -> None:
        # The oldest go first. One that came with a fast clock stays longer than it needs to.
        while self._seen:
            nonce, until = next(iter(self._seen.items()))
            if until >= now:
                break
            del self._seen[nonce]
        if claim.nonce in self._seen:
            raise AgentError(401, "this request has been seen before", code="replayed")
        if len(self._seen) >= self._max_nonces:
            # If the clock was set back, some in front stay for long and hide those behind them.
            self._seen = OrderedDict(each for each in self._seen.items() if each[1] >= now)
        if len(self._seen) >= self._max_nonces:
            raise AgentError(503, "too many requests in two minutes", code="busy")
        self._seen[claim.nonce] = now + 2 * MAX_CLOCK_SKEW_S

"""Verification of requests: signatures, clocks, boot ids and nonces."""

import hashlib
import hmac

import pytest

from chatd.agent.errors import AgentError
from chatd.agent.server.auth import (
    MAX_CLOCK_SKEW_S,
    MAX_NONCES,
    NO_BOOT,
    RequestClaim,
    RequestVerifier,
    digest,
    signed_headers,
)

KEY = b"k" * 32
NOW = 1_800_000_000


class WallClock:
    def __init__(self) -> None:
        self.time = float(NOW)

    def now(self) -> float:
        return self.time


def build_verifier(
    clock: WallClock | None = None, *, max_nonces: int = MAX_NONCES
) -> RequestVerifier:
    now = (clock or WallClock()).now
    return RequestVerifier(key=KEY, agent_id="a", boot_id="b", now=now, max_nonces=max_nonces)


def claim(
    *, agent: str = "a", boot: str = "b", at: int = NOW, nonce: int = 1, body: bytes = b""
) -> RequestClaim:
    headers = signed_headers({"chatd-chat-id": "c", "idempotency-key": "k"})
    return RequestClaim("GET", "/x?y=1", agent, boot, at, f"{nonce:032x}", digest(body), headers)


def signed_request(sent: RequestClaim, *, key: bytes = KEY) -> dict[str, str]:
    authorization = sent.authorization(key)
    return {"authorization": authorization, "chatd-chat-id": "c", "idempotency-key": "k"}


def test_signatures_match_the_documented_format() -> None:
    sent = claim(body=b"body")
    words = ["request", "GET", "/x?y=1", "a", "b", str(NOW), f"{1:032x}", "c", "", "", "k"]
    text = "\n".join([*words, hashlib.sha256(b"body").hexdigest()])
    assert sent.mac(KEY) == hmac.new(KEY, text.encode(), "sha256").hexdigest()
    reply = "\n".join(["reply", f"{1:032x}", "200", "b", hashlib.sha256(b"{}").hexdigest()])
    mac = hmac.new(KEY, reply.encode(), "sha256").hexdigest()
    assert build_verifier().sign_reply(sent, 200, b"{}") == {"Chatd-Boot": "b", "Chatd-Mac": mac}


def test_a_signed_request_is_verified() -> None:
    verifier = build_verifier()
    sent = verifier.read_claim("GET", "/x?y=1", signed_request(claim()))
    verifier.verify(sent)
    assert sent == claim()


@pytest.mark.parametrize(
    ("method", "target", "changed"),
    [
        ("POST", "/x?y=1", {}),
        ("GET", "/x?y=2", {}),
        ("GET", "/x?y=1", {"chatd-chat-id": "d"}),
        ("GET", "/x?y=1", {"chatd-ancestor-chat-ids": "[]"}),
        ("GET", "/x?y=1", {"chatd-epoch": "9"}),
        ("GET", "/x?y=1", {"idempotency-key": "other"}),
        (
            "GET",
            "/x?y=1",
            {"authorization": signed_request(claim())["authorization"].replace("=b;", "=c;")},
        ),
        ("GET", "/x?y=1", {"authorization": claim().authorization(b"another key")}),
    ],
)
def test_a_changed_request_fails_its_signature(
    method: str, target: str, changed: dict[str, str]
) -> None:
    with pytest.raises(AgentError) as error:
        build_verifier().read_claim(method, target, {**signed_request(claim()), **changed})
    assert (error.value.status, error.value.code) == (401, "bad_mac")


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "Bearer x",
        signed_request(claim())["authorization"] + ";more=1",
        signed_request(claim())["authorization"].replace("Chatd1", "Chatd2"),
        signed_request(claim())["authorization"].upper(),
        signed_request(claim())["authorization"].replace(f"at={NOW}", "at=-1"),
    ],
)
def test_a_malformed_signature_is_refused(authorization: str) -> None:
    with pytest.raises(AgentError) as error:
        build_verifier().read_claim(
            "GET", "/x?y=1", {**signed_request(claim()), "authorization": authorization}
        )
    assert (error.value.status, error.value.code) == (401, "unsigned")


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (claim(agent="z"), 401, "wrong_agent"),
        (claim(at=NOW - MAX_CLOCK_SKEW_S - 1), 401, "clock_skew"),
        (claim(at=NOW + MAX_CLOCK_SKEW_S + 1), 401, "clock_skew"),
        (claim(boot="z"), 409, "agent_rebooted"),
        (claim(boot=NO_BOOT), 409, "agent_rebooted"),
    ],
)
def test_a_signed_request_for_another_agent_time_or_boot_is_refused(
    sent: RequestClaim, status: int, code: str
) -> None:
    with pytest.raises(AgentError) as error:
        build_verifier().verify(sent)
    assert (error.value.status, error.value.code) == (status, code)


def test_a_request_for_the_boot_id_needs_no_boot_id() -> None:
    verifier = build_verifier()
    verifier.verify(claim(boot=NO_BOOT), any_boot=True)
    with pytest.raises(AgentError):
        verifier.verify(claim(boot="z", nonce=2), any_boot=True)


def test_a_replay_is_refused_until_its_time_expires() -> None:
    clock = WallClock()
    verifier = build_verifier(clock)
    sent = claim(at=NOW + MAX_CLOCK_SKEW_S)
    verifier.verify(sent)
    for later in (0, 1, MAX_CLOCK_SKEW_S, 2 * MAX_CLOCK_SKEW_S):
        clock.time = NOW + later
        with pytest.raises(AgentError) as error:
            verifier.verify(sent)
        assert error.value.code == "replayed"
    clock.time = NOW + 2 * MAX_CLOCK_SKEW_S + 1
    with pytest.raises(AgentError) as error:
        verifier.verify(sent)
    assert error.value.code == "clock_skew"


def test_a_full_nonce_table_refuses_requests() -> None:
    clock = WallClock()
    verifier = build_verifier(clock, max_nonces=2)
    verifier.verify(claim(nonce=1))
    verifier.verify(claim(nonce=2))
    with pytest.raises(AgentError) as error:
        verifier.verify(claim(nonce=3))
    assert error.value.status == 503
    clock.time += 2 * MAX_CLOCK_SKEW_S + 1
    verifier.verify(claim(nonce=3, at=int(clock.time)))


def test_a_clock_set_back_does_not_fill_the_nonces() -> None:
    clock = WallClock()
    verifier = build_verifier(clock, max_nonces=2)
    sent = claim(nonce=1)
    verifier.verify(sent)
    clock.time -= 24 * 3600
    for nonce in range(2, 10):
        verifier.verify(claim(nonce=nonce, at=int(clock.time)))
        clock.time += 2 * MAX_CLOCK_SKEW_S + 1
    clock.time = NOW
    with pytest.raises(AgentError) as error:
        verifier.verify(sent)
    assert error.value.code == "replayed"

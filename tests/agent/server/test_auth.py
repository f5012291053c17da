"""Who may ask the agent: signatures, clocks, boots and nonces."""

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
    watch: WallClock | None = None, *, max_nonces: int = MAX_NONCES
) -> RequestVerifier:
    now = (watch or WallClock()).now
    return RequestVerifier(key=KEY, agent_id="a", boot_id="b", now=now, max_nonces=max_nonces)


def claim(
    *, agent: str = "a", boot: str = "b", at: int = NOW, nonce: int = 1, body: bytes = b""
) -> RequestClaim:
    headers = signed_headers({"chatd-chat-id": "c", "idempotency-key": "k"})
    return RequestClaim("GET", "/x?y=1", agent, boot, at, f"{nonce:032x}", digest(body), headers)


def signed_request(said: RequestClaim, *, key: bytes = KEY) -> dict[str, str]:
    authorization = said.authorization(key)
    return {"authorization": authorization, "chatd-chat-id": "c", "idempotency-key": "k"}


def test_what_is_signed_is_as_agreed() -> None:
    said = claim(body=b"body")
    words = ["request", "GET", "/x?y=1", "a", "b", str(NOW), f"{1:032x}", "c", "", "", "k"]
    text = "\n".join([*words, hashlib.sha256(b"body").hexdigest()])
    assert said.mac(KEY) == hmac.new(KEY, text.encode(), "sha256").hexdigest()
    reply = "\n".join(["reply", f"{1:032x}", "200", "b", hashlib.sha256(b"{}").hexdigest()])
    mac = hmac.new(KEY, reply.encode(), "sha256").hexdigest()
    assert build_verifier().sign_reply(said, 200, b"{}") == {"Chatd-Boot": "b", "Chatd-Mac": mac}


def test_a_signed_request_is_admitted() -> None:
    door = build_verifier()
    said = door.read_claim("GET", "/x?y=1", signed_request(claim()))
    door.verify(said)
    assert said == claim()


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
def test_nothing_that_is_signed_can_be_changed(
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
def test_what_is_not_signed_as_agreed_is_not_signed(authorization: str) -> None:
    with pytest.raises(AgentError) as error:
        build_verifier().read_claim(
            "GET", "/x?y=1", {**signed_request(claim()), "authorization": authorization}
        )
    assert (error.value.status, error.value.code) == (401, "unsigned")


@pytest.mark.parametrize(
    ("said", "status", "code"),
    [
        (claim(agent="z"), 401, "wrong_agent"),
        (claim(at=NOW - MAX_CLOCK_SKEW_S - 1), 401, "clock_skew"),
        (claim(at=NOW + MAX_CLOCK_SKEW_S + 1), 401, "clock_skew"),
        (claim(boot="z"), 409, "agent_rebooted"),
        (claim(boot=NO_BOOT), 409, "agent_rebooted"),
    ],
)
def test_a_signed_request_may_be_for_somebody_else(
    said: RequestClaim, status: int, code: str
) -> None:
    with pytest.raises(AgentError) as error:
        build_verifier().verify(said)
    assert (error.value.status, error.value.code) == (status, code)


def test_a_greeting_need_not_know_the_boot() -> None:
    door = build_verifier()
    door.verify(claim(boot=NO_BOOT), any_boot=True)
    with pytest.raises(AgentError):
        door.verify(claim(boot="z", nonce=2), any_boot=True)


def test_a_request_is_admitted_once_for_as_long_as_its_time_would_pass() -> None:
    watch = WallClock()
    door = build_verifier(watch)
    said = claim(at=NOW + MAX_CLOCK_SKEW_S)
    door.verify(said)
    for later in (0, 1, MAX_CLOCK_SKEW_S, 2 * MAX_CLOCK_SKEW_S):
        watch.time = NOW + later
        with pytest.raises(AgentError) as error:
            door.verify(said)
        assert error.value.code == "replayed"
    watch.time = NOW + 2 * MAX_CLOCK_SKEW_S + 1
    with pytest.raises(AgentError) as error:
        door.verify(said)
    assert error.value.code == "clock_skew"


def test_the_memory_of_nonces_is_bounded_and_refuses_rather_than_forgets() -> None:
    watch = WallClock()
    door = build_verifier(watch, max_nonces=2)
    door.verify(claim(nonce=1))
    door.verify(claim(nonce=2))
    with pytest.raises(AgentError) as error:
        door.verify(claim(nonce=3))
    assert error.value.status == 503
    watch.time += 2 * MAX_CLOCK_SKEW_S + 1
    door.verify(claim(nonce=3, at=int(watch.time)))


def test_a_clock_that_was_set_back_does_not_fill_the_memory_of_nonces() -> None:
    watch = WallClock()
    door = build_verifier(watch, max_nonces=2)
    said = claim(nonce=1)
    door.verify(said)
    watch.time -= 24 * 3600
    for nonce in range(2, 10):
        door.verify(claim(nonce=nonce, at=int(watch.time)))
        watch.time += 2 * MAX_CLOCK_SKEW_S + 1
    watch.time = NOW
    with pytest.raises(AgentError) as error:
        door.verify(said)
    assert error.value.code == "replayed"

"""Webhooks: events of a change, signatures, retries."""

import base64
import hashlib
import hmac
from datetime import UTC, datetime
from uuid import UUID

import msgspec
import pytest

from chatd.domain.chat.change import Change
from chatd.domain.chat.row import ChatError
from chatd.domain.chat.states import State
from chatd.domain.deployment.webhooks import (
    DISABLE_AFTER_S,
    RETRY_DELAYS_S,
    Delivery,
    DeliveryReply,
    TurnEvent,
    body_of,
    decode_secret,
    encode_secret,
    reason_to_disable,
    retry_delay_s,
    signed_headers,
    turn_event,
)
from chatd.domain.errors import InvalidInput
from chatd.domain.ids import ChatId, MessageId
from chatd.services.webhooks import check_webhook_url
from tests.support.seeds import seed_state

SECRET = encode_secret(bytes(range(32)))


def delivery(**fields: object) -> Delivery:
    plain = Delivery(
        id=41,
        webhook_id=UUID(int=5),
        event="turn.failed",
        chat_id=ChatId(UUID(int=1)),
        version=17,
        title="Fix the build",
        labels={"ci": "7"},
        error=msgspec.Raw(b'{"kind":"timeout"}'),
        created_at=datetime(2026, 11, 16, tzinfo=UTC),
        attempts=1,
    )
    return msgspec.structs.replace(plain, **fields)


def change(before: State, after: State, *, next_turn: bool = False) -> Change:
    old, new = seed_state(before).chat, seed_state(after).chat
    if next_turn:
        new = msgspec.structs.replace(new, turn_message_id=MessageId(99))
    else:
        new = msgspec.structs.replace(new, turn_message_id=old.turn_message_id)
    return Change(before=old, after=new)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (change(State.R0, State.W), "turn.finished"),
        (change(State.R1, State.R0, next_turn=True), "turn.finished"),
        (change(State.R1, State.P0, next_turn=True), "turn.finished"),
        (change(State.R0, State.R0), None),
        (change(State.R0, State.P0), None),
        (change(State.R0, State.A0), "turn.needs_action"),
        (change(State.A0, State.P0), None),
        (change(State.A0, State.W), "turn.interrupted"),
        (change(State.I0, State.W), "turn.interrupted"),
        (change(State.I1, State.R0, next_turn=True), "turn.interrupted"),
        (change(State.R0, State.I0), None),
        (change(State.R0, State.XW0), "turn.interrupted"),
        (change(State.R0, State.E0), "turn.failed"),
        (change(State.E0, State.XE0), None),
        (change(State.W, State.R0, next_turn=True), None),
        (change(State.E0, State.R0, next_turn=True), None),
        (change(State.W, State.XW0), None),
        (Change(before=None, after=seed_state(State.R0).chat), None),
        (
            msgspec.structs.replace(
                change(State.R0, State.R0, next_turn=True), delete_from=MessageId(1)
            ),
            None,
        ),
    ],
)
def test_a_change_tells_how_a_turn_ended(given: Change, expected: TurnEvent | None) -> None:
    assert turn_event(given) == expected


def test_a_delivery_is_signed_as_receivers_expect() -> None:
    body = body_of(delivery())
    headers = signed_headers("msg_41", body, SECRET, 1_700_000_000)
    signed = b"msg_41.1700000000." + body
    expected = hmac.new(bytes(range(32)), signed, hashlib.sha256).digest()
    assert headers["webhook-signature"] == "v1," + base64.b64encode(expected).decode()
    assert (headers["webhook-id"], headers["webhook-timestamp"]) == ("msg_41", "1700000000")
    assert msgspec.json.decode(body) == {
        "type": "turn.failed",
        "timestamp": "2026-11-16T00:00:00Z",
        "data": {
            "chat_id": "00000000-0000-0000-0000-000000000001",
            "version": 17,
            "title": "Fix the build",
            "labels": {"ci": "7"},
            "error": {"kind": "timeout"},
        },
    }


def test_every_attempt_sends_the_same_body() -> None:
    first, second = delivery(), delivery(attempts=2)
    assert body_of(first) == body_of(second)


@pytest.mark.parametrize(
    "secret", ["", "whsec_", "whsec_!!!!", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw4n9cBfXrRwk="]
)
def test_a_secret_of_another_form_is_refused(secret: str) -> None:
    with pytest.raises(InvalidInput, match="whsec_"):
        decode_secret(secret)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.com/x",
        "/hooks",
        "https://",
        "https://user:word@example.com/",
        "https://example.com/#part",
        "https://example.com/a b",
        "https://example.com:99999/",
        "https://exämple.com/",
    ],
)
def test_a_url_that_cannot_be_called_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        check_webhook_url(url)


def test_a_failed_delivery_is_tried_again_with_growing_delays_and_then_given_up() -> None:
    delays = [retry_delay_s(n, 0.5) for n in range(1, len(RETRY_DELAYS_S) + 2)]
    assert delays == [*RETRY_DELAYS_S, None]
    assert list(RETRY_DELAYS_S) == sorted(RETRY_DELAYS_S)


@pytest.mark.parametrize(
    ("reply", "failing_for_s", "is_disabled"),
    [
        (DeliveryReply(status=204), DISABLE_AFTER_S, False),
        (DeliveryReply(status=500), 10.0, False),
        (DeliveryReply(status=500), DISABLE_AFTER_S, True),
        (DeliveryReply(failure="no answer"), DISABLE_AFTER_S, True),
        (DeliveryReply(status=410), 0.0, True),
        (DeliveryReply(status=302), 0.0, False),
    ],
)
def test_a_webhook_is_disabled_when_its_receiver_is_gone_or_fails_for_days(
    reply: DeliveryReply, failing_for_s: float, *, is_disabled: bool
) -> None:
    assert (reason_to_disable(reply, failing_for_s) is not None) == is_disabled


def test_the_error_of_a_chat_is_part_of_the_body() -> None:
    error = msgspec.json.encode(ChatError(kind="timeout", message="The model did not answer."))
    body = msgspec.json.decode(body_of(delivery(error=msgspec.Raw(error))))
    assert body["data"]["error"]["message"] == "The model did not answer."

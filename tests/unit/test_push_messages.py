"""Messages of web push: the example of RFC 8291, payloads, keys."""

import base64
from datetime import UTC, datetime
from uuid import UUID

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from msgspec import Raw

from chatd.domain.deployment.webhooks import (
    Delivery,
    DeliveryReply,
    decode_keys,
    push_payload,
    reason_to_disable,
)
from chatd.domain.errors import InvalidInput
from chatd.domain.ids import ChatId
from chatd.services.webhooks import PushSigner, encrypt_push, new_signing_key

# The example of RFC 8291, section 5.
P256DH = "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4"
AUTH = "BTBZMqHH6r4Tts7J_aSIgg"
SENDER = "yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw"
SALT = "DGv6ra1nlYgDCS1FRnbzlw"
ENCRYPTED = (
    "DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS"
    "6TlzAC8wEqKK6PBru3jl7A_yl95bQpu6cVPTpK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_Qu"
    "lcy4a-fN"
)
CHAT = ChatId(UUID("0193c5a0-7d1e-7b2f-9a64-2f4e9b7c6d12"))


def decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def delivery(event: str, *, error: bytes | None = None, action: bytes | None = None) -> Delivery:
    return Delivery(
        id=1,
        webhook_id=UUID(int=1),
        event=event,
        chat_id=CHAT,
        version=7,
        title="Fix the test",
        labels={},
        error=None if error is None else Raw(error),
        action=None if action is None else Raw(action),
        created_at=datetime(2026, 11, 17, tzinfo=UTC),
        attempts=1,
    )


def test_a_message_is_encrypted_as_in_the_example_of_the_standard() -> None:
    sender = ec.derive_private_key(int.from_bytes(decode(SENDER), "big"), ec.SECP256R1())
    text = b"When I grow up, I want to be a watermelon"
    made = encrypt_push(text, decode_keys(P256DH, AUTH), salt=decode(SALT), sender=sender)
    assert made == decode(ENCRYPTED)


def test_the_same_message_is_never_the_same_bytes_twice() -> None:
    keys = decode_keys(P256DH, AUTH)
    assert encrypt_push(b"hello", keys) != encrypt_push(b"hello", keys)


def test_a_request_is_signed_for_the_service_of_its_endpoint() -> None:
    signer = PushSigner(new_signing_key())
    headers = signer.headers("https://push.example.com/send/abc", "mailto:ops@example.com", 1000)
    kind, _, rest = headers["authorization"].partition(" ")
    token, key = (piece.partition("=")[2] for piece in rest.split(", "))
    claims = msgspec.json.decode(decode(token.split(".")[1]))
    assert (kind, key) == ("vapid", signer.public_key)
    assert claims["aud"] == "https://push.example.com"
    assert claims["exp"] == 1000 + 12 * 3600


@pytest.mark.parametrize(
    ("p256dh", "auth", "field"),
    [
        ("short", AUTH, "keys.p256dh"),
        ("x" * 87, AUTH, "keys.p256dh"),
        (P256DH, "short", "keys.auth"),
        (P256DH, "not base64!", "keys.auth"),
    ],
)
def test_keys_of_another_form_are_refused(p256dh: str, auth: str, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        decode_keys(p256dh, auth)
    assert refused.value.field == field


def test_a_key_that_is_no_point_of_the_curve_is_refused() -> None:
    with pytest.raises(InvalidInput):
        decode_keys(base64.urlsafe_b64encode(b"\x04" + bytes(64)).decode(), AUTH)


@pytest.mark.parametrize(
    ("made", "answer", "body"),
    [
        (delivery("turn.finished"), "All tests  pass.\nDone.", "All tests pass. Done."),
        (delivery("turn.finished"), "a" * 200, "a" * 159 + "…"),
        (delivery("turn.finished"), None, "The answer is complete."),
        (delivery("turn.failed", error=b'{"message":"No key."}'), None, "No key."),
        (delivery("turn.needs_action"), "earlier text", "The chat needs you."),
        (
            delivery("turn.needs_action", action=b'{"summary":"Approve: git push"}'),
            "earlier text",
            "Approve: git push",
        ),
    ],
)
def test_a_message_says_what_happened_in_one_line(
    made: Delivery, answer: str | None, body: str
) -> None:
    told = msgspec.json.decode(push_payload(made, answer))
    assert (told["title"], told["body"], told["url"]) == ("Fix the test", body, f"/c/{CHAT}")


def test_a_subscription_ends_when_the_service_does_not_know_it() -> None:
    replies = [DeliveryReply(status=status) for status in (404, 410, 400, 500)]
    ended = [reason_to_disable(reply, 0.0, "push") is not None for reply in replies]
    assert ended == [True, True, False, False]

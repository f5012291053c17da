"""Hints on the wire: small, tolerant of newer releases, None for anything else."""

import msgspec
import pytest

from chatd.domain.chat.row import Hint, decode_hint, encode_hint
from chatd.domain.ids import ChatId, UserId, WorkerId
from tests.support.factories import OTHER_WORKER, WORKER, chat

BUSY = chat(
    status="running",
    worker_id=WORKER,
    snapshot_version=41,
    history_version=40,
    queue_version=39,
    retry_version=38,
    attempt=2,
    epoch=7,
)


def test_a_hint_has_the_values_of_the_row() -> None:
    assert Hint.of(BUSY, "title") == Hint(
        chat_id=BUSY.id,
        owner_id=BUSY.owner_id,
        snapshot_version=41,
        history_version=40,
        queue_version=39,
        retry_version=38,
        attempt=2,
        status="running",
        worker_id=WORKER,
        epoch=7,
        kind="title",
    )


@pytest.mark.parametrize(
    "hint",
    [
        Hint.of(chat()),
        Hint.of(BUSY),
        Hint.of(chat(archived=True, snapshot_version=2**62), "archived"),
    ],
)
def test_a_hint_survives_the_wire(hint: Hint) -> None:
    assert decode_hint(encode_hint(hint)) == hint


def test_a_hint_is_small() -> None:
    assert len(encode_hint(Hint.of(BUSY, "created"))) < 256


def test_a_hint_is_encoded_with_short_keys_and_without_defaults() -> None:
    assert msgspec.json.decode(encode_hint(Hint.of(chat()))) == {
        "c": str(chat().id),
        "o": str(chat().owner_id),
        "v": 1,
        "h": 1,
        "s": "waiting",
    }


@pytest.mark.covers("F46")
def test_values_and_fields_of_a_newer_release_are_accepted() -> None:
    wire = msgspec.json.decode(encode_hint(Hint.of(BUSY)))
    newer = msgspec.json.encode(wire | {"s": "dreaming", "k": "dreamt", "zz": [1, {"a": None}]})
    decoded = decode_hint(newer.decode())
    assert decoded == msgspec.structs.replace(Hint.of(BUSY), status="dreaming", kind="dreamt")


@pytest.mark.parametrize(
    "payload",
    [
        "",
        "ping 1",
        "null",
        "[]",
        "{}",
        '{"c":"not a uuid","o":"","v":1,"h":1,"s":"waiting"}',
        encode_hint(Hint.of(BUSY))[:-1],
        encode_hint(Hint.of(BUSY)).replace("41", '"41"'),
        "\udc80",
        '{"zz":' + "[" * 5000,
    ],
)
def test_an_invalid_payload_is_no_hint(payload: str) -> None:
    assert decode_hint(payload) is None


@pytest.mark.parametrize(
    ("status", "worker", "runnable"),
    [
        ("running", None, True),
        ("interrupting", None, True),
        ("running", WORKER, False),
        ("interrupting", OTHER_WORKER, False),
        ("waiting", None, False),
        ("requires_action", None, False),
        ("error", None, False),
    ],
)
def test_a_hint_is_runnable_if_the_chat_needs_a_worker(
    status: str, worker: WorkerId | None, *, runnable: bool
) -> None:
    hint = Hint(
        chat_id=ChatId(BUSY.id),
        owner_id=UserId(BUSY.owner_id),
        snapshot_version=1,
        history_version=1,
        status=status,
        worker_id=worker,
    )
    assert hint.is_runnable == runnable

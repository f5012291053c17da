"""Which key of a provider a call uses, and how long a key rests."""

from uuid import UUID

import pytest

from chatd.domain.chat.row import ChatError
from chatd.domain.model.circuit import (
    LIMITED_KEY_REST_S,
    MAX_KEY_REST_S,
    REFUSED_KEY_REST_S,
    order_keys,
    rest_time_s,
)
from chatd.domain.model.failures import ClassifiedFailure, FailureKind

A, B, C = (UUID(int=number) for number in (3, 1, 2))


@pytest.mark.parametrize(
    ("rests_until", "expected"),
    [
        ({}, [A, B, C]),
        ({A: 99.0}, [A, B, C]),
        ({A: 101.0}, [B, C, A]),
        ({A: 105.0, B: 103.0}, [C, B, A]),
        ({A: 105.0, B: 103.0, C: 104.0}, [B, C, A]),
    ],
)
def test_rested_keys_are_used_in_their_order_before_the_others(
    rests_until: dict[UUID, float], expected: list[UUID]
) -> None:
    assert order_keys([A, B, C], rests_until, 100.0) == expected


@pytest.mark.parametrize(
    ("kind", "told_s", "rest_s"),
    [
        ("auth", None, REFUSED_KEY_REST_S),
        ("usage_limit", 5.0, REFUSED_KEY_REST_S),
        ("rate_limit", None, LIMITED_KEY_REST_S),
        ("rate_limit", 7.0, 7.0),
        ("rate_limit", 1e9, MAX_KEY_REST_S),
        ("overloaded", 7.0, None),
        ("config", None, None),
        ("context_overflow", None, None),
        ("timeout", None, None),
    ],
)
def test_a_key_rests_only_if_another_key_may_work(
    kind: FailureKind, told_s: float | None, rest_s: float | None
) -> None:
    error = ChatError(message="", kind=kind)
    failure = ClassifiedFailure(kind=kind, error=error, retry_after_s=told_s)
    assert rest_time_s(failure) == rest_s

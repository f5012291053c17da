"""A circuit per provider and key: after several failures in a row only one chat calls, as a probe;
and which of a provider's keys a call uses.

Closed: calls are made. Open: none until a time. Half open: one call, the probe, decides. Pure
values; times are of one monotonic clock.
"""

from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from chatd.domain.backoff import doubled_s, spread
from chatd.domain.model.failures import ClassifiedFailure

FAILURES_TO_OPEN: Final = 5
"""Failures in a row, of all chats of this replica."""
FIRST_OPEN_S: Final = 5.0
MAX_OPEN_S: Final = 60.0
PROBE_WAIT_S: Final = 5.0
"""How long other chats wait while a probe is under way."""
PROBE_TIMEOUT_S: Final = 60.0
"""A probe without an outcome for this long is replaced by another."""
MAX_CIRCUIT_WAIT_S: Final = 1800.0
"""The sum of a chat's delays after which it fails while the circuit is open, unless it may wait
longer for an outage."""
MAX_UNREACHED_WAIT_S: Final = 30.0
"""The same for a provider that has never answered: its address may be wrong."""


class Circuit(Struct, frozen=True, kw_only=True):
    """`failures` counts those in a row. `cause` is the failure that opened the circuit; without it
    the circuit is closed. `probed_at`: a probe began then and has no outcome yet."""

    failures: int = 0
    cause: ClassifiedFailure | None = None
    open_until: float = 0.0
    reopened: int = 0
    probed_at: float | None = None

    @property
    def is_open(self) -> bool:
        return self.cause is not None


CLOSED_CIRCUIT: Final = Circuit()


class CallAllowed(Struct, frozen=True, kw_only=True):
    circuit: Circuit


class CallRefused(Struct, frozen=True, kw_only=True):
    """Try again after `wait_s`. `cause` is the provider's failure, not the chat's."""

    wait_s: float
    cause: ClassifiedFailure


def request_call(circuit: Circuit, now: float) -> CallAllowed | CallRefused:
    if circuit.cause is None:
        return CallAllowed(circuit=circuit)
    if now < circuit.open_until:
        return CallRefused(wait_s=circuit.open_until - now, cause=circuit.cause)
    if circuit.probed_at is not None and now - circuit.probed_at < PROBE_TIMEOUT_S:
        return CallRefused(wait_s=PROBE_WAIT_S, cause=circuit.cause)
    return CallAllowed(circuit=replace(circuit, probed_at=now))


def after_answer(circuit: Circuit) -> Circuit:
    """The provider answers. One answer closes the circuit."""
    del circuit
    return CLOSED_CIRCUIT


def after_failure(
    circuit: Circuit, failed: ClassifiedFailure, now: float, jitter: float = 0.0
) -> Circuit:
    """A failure that other chats would have too counts, and a failed probe opens again for longer.
    A call that began before the circuit opened changes nothing."""
    if not is_of_provider(failed):
        return after_no_outcome(circuit)
    if circuit.is_open and circuit.probed_at is None:
        return circuit
    failures = circuit.failures + 1
    if failures < FAILURES_TO_OPEN and not circuit.is_open:
        return Circuit(failures=failures)
    reopened = circuit.reopened + 1 if circuit.is_open else 0
    backoff_s = doubled_s(reopened + 1, first_s=FIRST_OPEN_S, max_s=MAX_OPEN_S)
    wait_s = spread(max(backoff_s, failed.retry_after_s or 0.0), jitter)
    return Circuit(failures=failures, cause=failed, open_until=now + wait_s, reopened=reopened)


def after_no_outcome(circuit: Circuit) -> Circuit:
    """The call ended without telling anything about the provider: another chat may probe."""
    return circuit if circuit.probed_at is None else replace(circuit, probed_at=None)


def is_of_provider(failed: ClassifiedFailure) -> bool:
    """Whether other chats would fail too: no connection, a server error, or a rate limit with a
    time. A bad request is of its chat, and a slow stream may be."""
    if not failed.retryable:
        return False
    match failed.kind:
        case "overloaded" | "timeout":
            return True
        case "rate_limit":
            return failed.retry_after_s is not None
        case "generic":
            return failed.error.status_code is None or failed.error.status_code >= 500
        case _:
            return False


def is_wait_over(cause: ClassifiedFailure, waited_ms: int, outage_s: float = 0.0) -> bool:
    """Whether a chat has waited so long that it fails with the provider's failure. A wait far
    beyond MAX_UNREACHED_WAIT_S began before this process started, so an earlier process had an
    answer from this provider."""
    if waited_ms >= max(MAX_CIRCUIT_WAIT_S, outage_s) * 1000:
        return True
    is_new = MAX_UNREACHED_WAIT_S * 1000 <= waited_ms <= MAX_UNREACHED_WAIT_S * 4000
    return cause.never_reached is not None and is_new


# Which of a provider's keys a call uses.
#
# Keys are used in their order. A key that the provider refused or limited rests for a while, and
# the same call goes on with the next key. If all keys rest, the one whose rest ends first is tried.

REFUSED_KEY_REST_S: Final = 300.0
"""For a key that the provider refuses, or whose account has no credit left."""
LIMITED_KEY_REST_S: Final = 30.0
"""For a rate-limited key, if the provider does not say how long."""
MAX_KEY_REST_S: Final = 900.0


def rest_time_s(failure: ClassifiedFailure) -> float | None:
    """How long the key rests. None: another key would fail too."""
    match failure.kind:
        case "auth" | "usage_limit":
            return REFUSED_KEY_REST_S
        case "rate_limit":
            told = failure.retry_after_s
            return min(LIMITED_KEY_REST_S if told is None else told, MAX_KEY_REST_S)
        case _:
            return None


def order_keys(keys: Sequence[UUID], rests_until: Mapping[UUID, float], now: float) -> list[UUID]:
    """Available keys in their order, then resting ones by the end of their rest."""
    return sorted(keys, key=lambda key: max(rests_until.get(key, now), now))

"""Fallbacks of a model: for which failures, when, and which models cannot take a chat's prompt."""

from datetime import UTC, datetime, timedelta
from typing import get_args
from uuid import UUID

import pytest
from msgspec.structs import replace

from chatd.domain.chat.commands import CommitStep, RecordRetry
from chatd.domain.chat.messages import Draft
from chatd.domain.chat.row import (
    NO_SETBACKS,
    Chat,
    ChatError,
    ChosenFallback,
    Fence,
    ModelSwitch,
    RetryState,
    Setbacks,
)
from chatd.domain.chat.states import State
from chatd.domain.chat.worker_transitions import commit_step, record_retry
from chatd.domain.ids import ModelConfigId
from chatd.domain.model.failures import ClassifiedFailure, FailureKind
from chatd.domain.model.fallback import (
    FALLBACK_STAY_S,
    MAX_AWAITED_S,
    MAX_FALLBACKS,
    PromptNeeds,
    check_fallbacks,
    fallback_objection,
    fallback_reason,
    fits_reason,
    is_fallback_due,
    needs_fallback,
)
from chatd.domain.model.protocol import (
    ANY_IMAGE_OR_PDF,
    AcceptedFiles,
    Fallback,
    FallbackReason,
    ModelConfig,
)
from tests.support.factories import draft, text
from tests.support.seeds import seed_state

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)
OWN, OTHER, THIRD = (ModelConfigId(UUID(int=n)) for n in (1, 2, 3))
CHOSEN = ChosenFallback(model_config_id=OTHER, reason="outage", since=NOW)


def model(id_: ModelConfigId, limit: int | None = None) -> ModelConfig:
    return ModelConfig(id=id_, name=f"m{id_.int}", provider="p", model="m", context_limit=limit)


def failed(
    kind: FailureKind, *, retryable: bool = True, after: float | None = None, own: bool = False
) -> ClassifiedFailure:
    provider = None if own else "p"
    error = ChatError(message="no", kind=kind, retryable=retryable, provider=provider)
    return ClassifiedFailure(kind=kind, error=error, retry_after_s=after)


REASONS: dict[FailureKind, FallbackReason | None] = {
    "generic": "outage",
    "timeout": "outage",
    "stream_silence_timeout": "outage",
    "stream_content_timeout": None,
    "overloaded": "overload",
    "rate_limit": "overload",
    "auth": "access",
    "config": "access",
    "usage_limit": "access",
    "missing_key": "access",
    "provider_disabled": "access",
    "model_removed": None,
    "content_filter": "refusal",
    "refusal": "refusal",
    "context_overflow": "context",
    "output_limit": None,
    "answer_too_large": None,
}


def test_every_kind_of_failure_has_its_reason_or_none() -> None:
    assert set(REASONS) == set(get_args(FailureKind))
    assert {kind: fallback_reason(failed(kind)) for kind in REASONS} == REASONS


def test_a_bad_request_and_a_failure_of_chatd_itself_are_no_reason() -> None:
    assert fallback_reason(failed("generic", retryable=False)) is None
    assert fallback_reason(failed("generic", own=True)) is None


@pytest.mark.parametrize(
    ("failure", "setbacks", "is_called", "expected"),
    [
        (failed("timeout"), NO_SETBACKS, True, None),
        (failed("timeout"), Setbacks(failed_calls=1), True, "outage"),
        (failed("timeout"), Setbacks(fallback=CHOSEN), True, "outage"),
        (failed("timeout"), NO_SETBACKS, False, "outage"),
        (failed("rate_limit", after=MAX_AWAITED_S), NO_SETBACKS, True, None),
        (failed("rate_limit", after=MAX_AWAITED_S + 1), NO_SETBACKS, True, "overload"),
        (failed("auth"), NO_SETBACKS, True, "access"),
        (failed("refusal"), NO_SETBACKS, True, "refusal"),
        (failed("context_overflow"), NO_SETBACKS, True, "context"),
        (failed("output_limit"), Setbacks(failed_calls=9), True, None),
    ],
)
def test_when_a_fallback_is_needed(
    failure: ClassifiedFailure, setbacks: Setbacks, *, is_called: bool, expected: str | None
) -> None:
    assert needs_fallback(failure, setbacks, is_called=is_called) == expected


TEXT_ONLY = AcceptedFiles()
IMAGE = frozenset({"image/png"})


@pytest.mark.parametrize(
    ("limit", "files", "needs", "reason", "fits"),
    [
        (None, TEXT_ONLY, PromptNeeds(tokens=500), "outage", True),
        (1000, TEXT_ONLY, PromptNeeds(tokens=999), "outage", True),
        (1000, TEXT_ONLY, PromptNeeds(tokens=1000), "outage", False),
        (1000, TEXT_ONLY, PromptNeeds(media_types=IMAGE), "outage", False),
        (1000, ANY_IMAGE_OR_PDF, PromptNeeds(media_types=IMAGE), "outage", True),
        (None, TEXT_ONLY, PromptNeeds(), "context", False),
        (2000, TEXT_ONLY, PromptNeeds(), "context", False),
        (2001, TEXT_ONLY, PromptNeeds(), "context", True),
    ],
)
def test_a_fallback_must_be_able_to_take_the_prompt(
    limit: int | None,
    files: AcceptedFiles,
    needs: PromptNeeds,
    reason: FallbackReason,
    *,
    fits: bool,
) -> None:
    found = fallback_objection(model(OTHER, limit), files, needs, reason, model(OWN, 2000))
    assert (found is None) == fits


def test_a_fallback_also_counts_for_the_reason_that_the_own_model_failed_for() -> None:
    third = Fallback(model="m3", on=("outage",))
    assert not fits_reason(third, "refusal", NO_SETBACKS)
    assert fits_reason(third, "refusal", Setbacks(fallback=CHOSEN))


@pytest.mark.parametrize(
    ("failed_models", "tokens", "age_s", "expected"),
    [
        ((), 0, 0.0, True),
        ((), 0, FALLBACK_STAY_S, False),
        ((), 1000, FALLBACK_STAY_S, True),
        ((OWN,), 0, 10 * FALLBACK_STAY_S, True),
        ((OWN, OTHER), 0, 0.0, False),
    ],
    ids=["soon", "later", "too long for the own model", "within a step", "failed itself"],
)
def test_how_long_a_fallback_answers(
    failed_models: tuple[ModelConfigId, ...], tokens: int, age_s: float, *, expected: bool
) -> None:
    setbacks = Setbacks(failed_models=failed_models, fallback=CHOSEN)
    now = NOW + timedelta(seconds=age_s)
    assert is_fallback_due(CHOSEN, setbacks, model(OWN, 1000), tokens, now) == expected


@pytest.mark.parametrize(
    ("given", "is_valid"),
    [
        ((Fallback(model="b"), Fallback(model="c")), True),
        ((Fallback(model="a"),), False),
        ((Fallback(model="b"), Fallback(model="b")), False),
        ((Fallback(model="b", on=()),), False),
        (tuple(Fallback(model=f"b{n}") for n in range(MAX_FALLBACKS + 1)), False),
    ],
    ids=["two", "itself", "twice", "no reason", "too many"],
)
def test_which_fallbacks_a_model_may_have(given: tuple[Fallback, ...], *, is_valid: bool) -> None:
    assert (check_fallbacks("a", given) is None) == is_valid


# The row


def fallen_back() -> Chat:
    chat = replace(seed_state(State.R0).chat, model_config_id=OWN)
    state = RetryState(attempt=1, delay_ms=0, error="down")
    switch = ModelSwitch(failed_models=(OWN,), fallback=CHOSEN)
    return record_retry(chat, RecordRetry(fence=Fence.of(chat), state=state, switch=switch)).after


@pytest.mark.parametrize(
    ("message", "own", "fallback"),
    [
        (draft("assistant", text("by the fallback"), model_config_id=OTHER), OWN, CHOSEN),
        (draft("assistant", text("by the own model"), model_config_id=OWN), OWN, None),
        (draft("assistant", text("by either")), OWN, CHOSEN),
        (draft("user", text("with the own model"), model_config_id=OWN), OWN, CHOSEN),
        (draft("user", text("with the fallback"), model_config_id=OTHER), OTHER, None),
        (draft("user", text("with a third"), model_config_id=THIRD), THIRD, None),
    ],
    ids=["fallback", "own", "either", "user: own", "user: fallback", "user: third"],
)
def test_the_chat_keeps_its_model_while_a_fallback_answers(
    message: Draft, own: ModelConfigId, fallback: ChosenFallback | None
) -> None:
    chat = fallen_back()
    assert (chat.fallback, chat.model_config_id) == (CHOSEN, OWN)
    after = commit_step(chat, CommitStep(fence=Fence.of(chat), messages=(message,))).after
    assert after.model_config_id == own
    assert after.setbacks == (None if fallback is None else Setbacks(fallback=fallback))

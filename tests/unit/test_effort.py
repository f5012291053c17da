"""The wish for more or less thinking, and the range that is configured."""

import pytest

from chatd.domain.model.config import resolve_effort
from chatd.domain.model.protocol import Effort, EffortRange


@pytest.mark.covers("providers-14")
@pytest.mark.parametrize(
    ("requested", "default", "most", "resolved"),
    [
        (None, None, None, None),
        (None, "low", None, "low"),
        ("high", "low", None, "high"),
        ("high", "low", "medium", "medium"),
        (None, "max", "high", "high"),
        ("low", "medium", "high", "low"),
        ("enormous", "medium", "high", "medium"),
        ("none", "medium", "high", "none"),
        ("enormous", None, "high", None),
    ],
)
def test_a_wish_is_kept_within_what_is_configured(
    requested: str | None, default: Effort | None, most: Effort | None, resolved: Effort | None
) -> None:
    assert resolve_effort(requested, EffortRange(default=default, max=most)) == resolved


@pytest.mark.covers("providers-14")
def test_a_model_without_a_range_is_not_asked_to_think() -> None:
    assert resolve_effort("high", None) is None

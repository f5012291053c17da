"""The requested reasoning effort within the configured range."""

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
def test_the_requested_effort_is_limited_to_the_configured_range(
    requested: str | None, default: Effort | None, most: Effort | None, resolved: Effort | None
) -> None:
    assert resolve_effort(requested, EffortRange(default=default, max=most)) == resolved


@pytest.mark.covers("providers-14")
def test_a_model_without_a_range_gets_no_effort() -> None:
    assert resolve_effort("high", None) is None

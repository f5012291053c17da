"""When a cron expression is due."""

from datetime import UTC, datetime
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

from chatd.domain.deployment.schedules import Schedule, chat_of_run, parse_cron
from chatd.domain.errors import InvalidInput
from chatd.domain.ids import UserId

NOW = datetime(2026, 11, 16, 21, 30, 15, tzinfo=UTC)  # a Monday
BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("* * * * *", "2026-11-16T21:31"),
        ("*/15 * * * *", "2026-11-16T21:45"),
        ("30 21 * * *", "2026-11-17T21:30"),
        ("31 21 * * *", "2026-11-16T21:31"),
        ("0 0 * * *", "2026-11-17T00:00"),
        ("@daily", "2026-11-17T00:00"),
        ("@HOURLY", "2026-11-16T22:00"),
        ("@weekly", "2026-11-22T00:00"),
        ("@monthly", "2026-12-01T00:00"),
        ("@yearly", "2027-01-01T00:00"),
        ("0 9 * * mon-fri", "2026-11-17T09:00"),
        ("0 9 * * 7", "2026-11-22T09:00"),
        ("0 9 * * SUN", "2026-11-22T09:00"),
        ("0 9 13 * fri", "2026-11-20T09:00"),
        ("0 9 13 * *", "2026-12-13T09:00"),
        ("0 9 */2 * *", "2026-11-17T09:00"),
        ("5,10-12,50/5 3 1 jan,mar *", "2027-01-01T03:05"),
        ("0 0 29 2 *", "2028-02-29T00:00"),
        ("10/20 * * * *", "2026-11-16T21:50"),
    ],
)
def test_an_expression_is_due_as_in_cron(cron: str, expected: str) -> None:
    assert parse_cron(cron).next_after(NOW, UTC) == at(expected)


def test_an_expression_that_never_comes_is_never_due() -> None:
    assert parse_cron("0 0 30 2 *").next_after(NOW, UTC) is None


@pytest.mark.parametrize(
    ("cron", "after", "expected"),
    [
        pytest.param("0 9 * * *", "2026-11-16T21:30", "2026-11-17T08:00", id="winter"),
        pytest.param("0 9 * * *", "2026-07-01T21:30", "2026-07-02T07:00", id="summer"),
        pytest.param("30 2 * * *", "2026-03-28T12:00", "2026-03-29T01:30", id="skipped time"),
        pytest.param("30 2 * * *", "2026-10-24T12:00", "2026-10-25T00:30", id="time comes twice"),
        pytest.param("30 2 * * *", "2026-10-25T00:30", "2026-10-26T01:30", id="only the first"),
    ],
)
def test_a_time_zone_and_its_changes_of_the_clock_count(
    cron: str, after: str, expected: str
) -> None:
    assert parse_cron(cron).next_after(at(after), BERLIN) == at(expected)


@pytest.mark.parametrize(
    ("cron", "text"),
    [
        ("", "five fields"),
        ("* * * *", "five fields"),
        ("* * * * * *", "five fields"),
        ("@often", "five fields"),
        ("60 * * * *", "minute must be 0 to 59"),
        ("* 24 * * *", "hour must be 0 to 23"),
        ("* * 0 * *", "day of month must be 1 to 31"),
        ("* * * foo *", "month must be 1 to 12"),
        ("* * * * 8", "day of week must be 0 to 7"),
        ("5-1 * * * *", "empty"),
        ("*/0 * * * *", "not a value"),
        ("*/x * * * *", "not a value"),
        ("-1 * * * *", "not a value"),
        ("1,,2 * * * *", "not a value"),
        ("¹ * * * *", "not a value"),
    ],
)
def test_another_text_is_refused_with_the_reason(cron: str, text: str) -> None:
    with pytest.raises(InvalidInput, match=text) as refused:
        parse_cron(cron)
    assert refused.value.field == "cron"


def test_a_repeated_run_has_the_same_chat_and_the_next_run_another() -> None:
    schedule = Schedule(
        id=UUID(int=1),
        owner_id=UserId(UUID(int=2)),
        name="Nightly",
        cron="@daily",
        timezone="UTC",
        prompt="Check the build.",
        model_config_id=None,
        reasoning_effort=None,
        labels={"team": "infra"},
        workspace_id=None,
        enabled=True,
        next_at=NOW,
        last_at=None,
        last_chat_id=None,
        last_error=None,
        created_at=NOW,
        updated_at=NOW,
    )
    first, again = chat_of_run(schedule, NOW), chat_of_run(schedule, NOW.astimezone(BERLIN))
    assert first == again
    assert (first.title, first.labels) == ("Nightly", {"team": "infra"})
    assert chat_of_run(schedule, at("2026-11-17T00:00")).id != first.id

"""Schedules: when a cron expression is due, and the chat that a due schedule starts."""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Final
from uuid import UUID, uuid5

from msgspec import Struct

from chatd.domain.chat.commands import CreateChat
from chatd.domain.chat.messages import UserInput
from chatd.domain.chat.parts import TextPart
from chatd.domain.errors import InvalidInput
from chatd.domain.ids import ChatId, ModelConfigId, ProjectId, UserId, WorkspaceId
from chatd.domain.prompt.titles import fallback_title

MAX_SCHEDULES_PER_USER: Final = 50
MAX_CRON_CHARS: Final = 200
_MAX_DAYS_AHEAD: Final = 366 * 8
"""February 29 is at most eight years away."""
_CHATS: Final = UUID("2a0c4a1e-7d0f-5b5e-8f57-51b1f8a3c9d4")

_MACROS: Final[Mapping[str, str]] = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_MONTHS: Final = (
    *("jan", "feb", "mar", "apr", "may", "jun"),
    *("jul", "aug", "sep", "oct", "nov", "dec"),
)
_WEEKDAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_ITEM: Final = re.compile(r"(?P<all>\*)|(?P<first>[a-z0-9]+)(-(?P<last>[a-z0-9]+))?")


class _Field(Struct, frozen=True, kw_only=True):
    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()
    """Names of the values from `low` on."""


_FIELDS: Final = (
    _Field(name="minute", low=0, high=59),
    _Field(name="hour", low=0, high=23),
    _Field(name="day of month", low=1, high=31),
    _Field(name="month", low=1, high=12, names=_MONTHS),
    _Field(name="day of week", low=0, high=7, names=_WEEKDAYS),
)


class Cron(Struct, frozen=True, kw_only=True):
    """A parsed expression. If it restricts both kinds of day, either is enough, as in cron."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    any_day: bool
    any_weekday: bool

    def includes(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        in_month, in_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        if self.any_day or self.any_weekday:
            return in_month and in_week
        return in_month or in_week

    def next_after(self, moment: datetime, zone: tzinfo) -> datetime | None:
        """The first due time after the moment, in UTC; None if there is none for years.

        A time that a change of the clock skips is due as much later; of a time that comes twice
        only the first counts."""
        first = moment.astimezone(zone).date()
        for ahead in range(_MAX_DAYS_AHEAD):
            day = first + timedelta(days=ahead)
            if self.includes(day):
                for due in self._times(day, zone):
                    if due > moment:
                        return due
        return None

    def _times(self, day: date, zone: tzinfo) -> Iterator[datetime]:
        for hour in self.hours:
            for minute in self.minutes:
                local = datetime(day.year, day.month, day.day, hour, minute, tzinfo=zone)
                yield local.astimezone(UTC)


def parse_cron(text: str) -> Cron:
    """Five fields: minute, hour, day of month, month, day of week; or @hourly, @daily and so on.
    Raises InvalidInput."""
    cleaned = text.strip().lower()
    pieces = _MACROS.get(cleaned, cleaned).split()
    if len(pieces) != len(_FIELDS):
        raise _refusal("must have five fields: minute hour day-of-month month day-of-week")
    values = [_parse(piece, field) for piece, field in zip(pieces, _FIELDS, strict=True)]
    minutes, hours, days, months, weekdays = values
    return Cron(
        minutes=tuple(sorted(minutes)),
        hours=tuple(sorted(hours)),
        days=days,
        months=months,
        weekdays=frozenset(value % 7 for value in weekdays),
        any_day=pieces[2].startswith("*"),
        any_weekday=pieces[4].startswith("*"),
    )


def _parse(piece: str, field: _Field) -> frozenset[int]:
    found: set[int] = set()
    for item in piece.split(","):
        span, slash, step = item.partition("/")
        match = _ITEM.fullmatch(span)
        if match is None or (slash and not _is_step(step)):
            raise _refusal(f"the {field.name} has {item!r}, which is not a value, range or step")
        if match["all"]:
            low, high = field.low, field.high
        else:
            low = _value(match["first"], field)
            high = _value(match["last"], field) if match["last"] else low
            high = field.high if slash and not match["last"] else high
        if low > high:
            raise _refusal(f"the {field.name} has the range {span}, which is empty")
        found.update(range(low, high + 1, int(step) if slash else 1))
    return frozenset(found)


def _is_step(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 2 and int(text) > 0


def _value(text: str, field: _Field) -> int:
    if text in field.names:
        return field.low + field.names.index(text)
    if text.isdecimal() and len(text) <= 2 and field.low <= int(text) <= field.high:
        return int(text)
    raise _refusal(f"the {field.name} must be {field.low} to {field.high}, got {text}")


def _refusal(text: str) -> InvalidInput:
    return InvalidInput("cron", text)


class Schedule(Struct, frozen=True, kw_only=True):
    """`next_at` is None while it is disabled. `last_error`: why the last run started no chat."""

    id: UUID
    owner_id: UserId
    name: str
    cron: str
    timezone: str
    prompt: str
    model_config_id: ModelConfigId | None
    reasoning_effort: str | None
    labels: Mapping[str, str]
    workspace_id: WorkspaceId | None
    project_id: ProjectId | None = None
    enabled: bool
    next_at: datetime | None
    last_at: datetime | None
    last_chat_id: ChatId | None
    last_error: str | None
    created_at: datetime
    updated_at: datetime


def chat_of_run(
    schedule: Schedule, due_at: datetime, default_model: ModelConfigId | None = None
) -> CreateChat:
    """The id follows from the schedule and its due time: a run that is repeated after a crash, or
    by another replica, finds the chat of the first one. `default_model` is that of its project."""
    moment = due_at.astimezone(UTC).isoformat()
    model = schedule.model_config_id or default_model
    prompt = UserInput(
        content=(TextPart(text=schedule.prompt),),
        created_by=schedule.owner_id,
        model_config_id=model,
        reasoning_effort=schedule.reasoning_effort,
    )
    return CreateChat(
        id=ChatId(uuid5(_CHATS, f"{schedule.id} {moment}")),
        owner_id=schedule.owner_id,
        title=fallback_title(schedule.name),
        prompt=prompt,
        model_config_id=model,
        reasoning_effort=schedule.reasoning_effort,
        labels=schedule.labels,
        workspace_id=schedule.workspace_id,
        project_id=schedule.project_id,
    )

"""Start the chats of schedules that are due.

Every replica looks for due schedules, without a claim: the id of a run's chat follows from the
schedule and the due time, so several replicas start one chat. Runs that were missed while no server
ran are made up for by one run.
"""

from contextlib import suppress
from datetime import datetime
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from chatd.domain.deployment.schedules import Schedule, chat_of_run, parse_cron
from chatd.domain.errors import ChatdError, RequestError, Unavailable
from chatd.domain.ids import ChatId
from chatd.domain.ports import Env
from chatd.store import projects
from chatd.store.chat.operation import Operation
from chatd.store.chat.transactor import Transactor
from chatd.store.database.pool import Pool
from chatd.store.deployment import schedules
from chatd.store.deployment.schedules import DueSchedule

POLL_INTERVAL_S: Final = 15.0
MAX_RUNS_PER_POLL: Final = 20


def next_run(schedule: Schedule, after: datetime) -> datetime | None:
    """Raises InvalidInput, and ChatdError if this host does not know the time zone."""
    try:
        zone = ZoneInfo(schedule.timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ChatdError(f"This host does not know the time zone {schedule.timezone}.") from None
    return parse_cron(schedule.cron).next_after(after, zone)


class ScheduleRunner:
    """`run` starts chats until it is cancelled."""

    def __init__(self, pool: Pool, transactor: Transactor, env: Env) -> None:
        self._pool = pool
        self._transactor = transactor
        self._env = env

    async def run(self) -> None:
        while True:
            try:
                while await self.run_due() == MAX_RUNS_PER_POLL:
                    pass
            except Unavailable as error:
                self._env.emit("schedules_unread", error_kind=error.code)
            await self._env.clock.sleep(POLL_INTERVAL_S, "schedules")

    async def run_due(self) -> int:
        """The number of schedules that were due."""
        due = await schedules.list_due(self._pool, limit=MAX_RUNS_PER_POLL)
        for one in due:
            await self._run_one(one)
        return len(due)

    async def _run_one(self, due: DueSchedule) -> None:
        """A run that cannot start its chat is recorded with the reason, and the next one is set:
        it must not hold up other schedules."""
        schedule, chat_id, failure = due.schedule, None, None
        next_at = None
        try:
            next_at = next_run(schedule, due.read_at)
            chat_id = await self._start_chat(due)
        except Unavailable:
            raise
        except ChatdError as error:
            failure = error.message
            self._env.emit("schedule_failed", schedule_id=schedule.id, error_kind=error.code)
        await schedules.finish(
            self._pool, schedule, next_at=next_at, chat_id=chat_id, error=failure
        )

    async def _start_chat(self, due: DueSchedule) -> ChatId:
        """Raises Forbidden if the owner may start no chats any more, here or in the project, and
        NotFound if the owner has left the project: no chat starts outside it instead."""
        schedule = due.schedule
        assert schedule.next_at is not None  # it is due
        model = None
        if schedule.project_id is not None:
            project = await projects.require(self._pool, due.actor, schedule.project_id, "edit")
            model = project.model_config_id
        command = chat_of_run(schedule, schedule.next_at, model)
        operation = Operation(
            chat_id=command.id,
            command=command,
            actor=due.actor,
            change_id=self._env.new_change_id(),
        )
        try:
            await self._transactor.run(operation)
        except RequestError as error:
            if error.code != "chat_exists":
                raise
        if schedule.project_id is not None:
            with suppress(Unavailable):
                await projects.announce_chat(self._pool, command.id)
        return command.id

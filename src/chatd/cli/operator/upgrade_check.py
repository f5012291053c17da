"""The work of `chatd upgrade check`: what a start of this version would do to a database."""

import os
from importlib import metadata
from typing import Final

from chatd.app.database import open_database
from chatd.cli.admin import database_name
from chatd.cli.operator.doctor import DoctorReport
from chatd.clock import SystemClock
from chatd.domain.chat.lease import LEASE_TTL_S
from chatd.domain.deployment.diagnosis import Finding, ReplicaReport, judge_upgrade
from chatd.settings.schema import Settings
from chatd.store.database import migrator, sealed_columns
from chatd.store.database.conn import ConnectConfig, connect

PROCESS_REPORTS_SINCE: Final = 3
"""The migration that brought the columns in which processes say what they are."""


async def examine_upgrade(settings: Settings) -> DoctorReport:
    """Reads only."""
    version = metadata.version("chatd")
    async with open_database(settings, os.environ, SystemClock()) as server:
        plan = await migrator.check(server.dsn)
        pending = [one.file for one in plan.pending]
        ahead = [f"{one.version:04d}_{one.name}" for one in plan.ahead]
        lacking = {one.version for one in plan.pending}
        replicas = await _read_processes(server.dsn, lacking)
    found: list[Finding] = judge_upgrade(pending, ahead, replicas, version)
    return DoctorReport(target=database_name(settings), version=version, findings=tuple(found))


async def _read_processes(dsn: str, lacking: set[int]) -> list[ReplicaReport]:
    """None are known to a database from before they were recorded."""
    if PROCESS_REPORTS_SINCE in lacking:
        return []
    session = await connect(ConnectConfig(dsn=dsn, application_name="chatd upgrade check"))
    try:
        return list(await sealed_columns.list_processes(session, LEASE_TTL_S))
    finally:
        session.terminate()

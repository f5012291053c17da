"""Starting and stopping the server process. Behind the gate only.

Does not decide when: `server` does.
"""

import contextlib
from collections.abc import Mapping
from typing import Final

import msgspec

from chatd.pg import remains
from chatd.pg.account import Account
from chatd.pg.binaries import Binaries
from chatd.pg.config import server_settings
from chatd.pg.dirs import OwnFile, make_private_dir
from chatd.pg.errors import PgError
from chatd.pg.log import bound_log, end_of_log, log_size, open_log, read_since
from chatd.pg.places import Layout
from chatd.pg.process import last_lines, launch, run
from chatd.pg.pulse import Pulse, feel, is_usable
from chatd.pg.waiting import Patience

START_S: Final = 30.0  # A killed server's last backends keep its memory for a second or two.
STARTS: Final = 3
ANSWER_S: Final = 2.0
SILENCE_S: Final = 15.0
FAST_STOP_S: Final = 30
IMMEDIATE_STOP_S: Final = 10


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is settled before a server is started."""

    layout: Layout
    binaries: Binaries
    account: Account | None
    settings: Mapping[str, str]
    ready_within_s: float


class StillRecovering(PgError):
    """The server must not be stopped: it would have to begin again, and never come to the end."""


async def is_up(site: Site) -> bool:
    """Whether a server listens here. One that listens and does not answer is not a dead one."""
    patience = Patience(SILENCE_S)
    while (pulse := await feel(site.layout.socket, within_s=ANSWER_S)) is Pulse.SILENT:
        if not await patience.again():
            raise PgError(
                f"The PostgreSQL server of {site.layout.cluster} listens but does not answer. "
                "Its process may be stopped or the machine overloaded. Its pid is in "
                "postmaster.pid there."
            )
    return pulse is Pulse.ALIVE


async def bring_up(site: Site) -> None:
    """Return when the database can be used: join a server, or start one and see it recover."""
    patience = Patience(site.ready_within_s)
    starts = 0
    while True:
        if not await is_up(site):
            if starts == STARTS:
                raise PgError(f"PostgreSQL starts and dies again. {end_of_log(site.layout)}")
            starts += 1
            await _start(site)
        if await is_usable(site.layout.socket_dir):
            return
        if not await patience.again():
            raise StillRecovering(
                f"PostgreSQL has been recovering for {site.ready_within_s:.0f} s and is not ready "
                f"yet. It goes on by itself: try again later. {end_of_log(site.layout)}"
            )


async def _start(site: Site) -> None:
    """Start a server where none listens, trying again while a dead one is still leaving."""
    patience = Patience(START_S)
    while not await _try_start(site, patience):
        if not await patience.again():
            raise PgError(
                f"PostgreSQL could not be started within {START_S:.0f} s: remains of an earlier "
                f"server hold {site.layout.cluster}. {end_of_log(site.layout)}"
            )


async def _try_start(site: Site, patience: Patience) -> bool:
    """True when it listens, False when it may help to try again."""
    try:
        # Again for every start: a temporary directory may have been swept.
        make_private_dir(site.layout.socket_dir, site.account)
        remains.clear(site.layout)
        bound_log(site.layout)
        with contextlib.closing(open_log(site.layout)) as log:
            return await _launch_and_watch(site, log, patience)
    except OSError as error:
        raise PgError(f"Cannot start PostgreSQL in {site.layout.data_dir}: {error}.") from error


async def _launch_and_watch(site: Site, log: OwnFile, patience: Patience) -> bool:
    begin = log_size(log)
    process = launch(server_command(site), run_as=site.account, log_fd=log.fd)
    try:
        while await feel(site.layout.socket, within_s=ANSWER_S) is not Pulse.ALIVE:
            if process.exited:
                said = read_since(log, begin)
                if may_pass(said):
                    return False
                raise PgError(explain_failed_start(site.layout, said))
            if not await patience.again():
                raise PgError(f"PostgreSQL does not answer. {end_of_log(site.layout)}")
    except BaseException:
        process.stop()  # Nobody else would: it has no user yet.
        raise
    return True


def server_command(site: Site) -> list[str]:
    settings = server_settings(site.layout.socket_dir, site.settings)
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    return [str(site.binaries.program("postgres")), "-D", str(site.layout.cluster), *options]


def may_pass(log: str) -> bool:
    """Whether the refusal is about remains of an earlier server, which go away by themselves."""
    return "is still in use" in log or ("lock file" in log and "already exists" in log)


def explain_failed_start(layout: Layout, log: str) -> str:
    if not log.strip():
        return f"PostgreSQL ended at once without a word in {layout.log}. Is the disk full?"
    return f"PostgreSQL did not start. {layout.log} says:\n{last_lines(log)}"


async def stop_server(site: Site) -> None:
    """Fast shutdown: open transactions roll back, everything committed is written."""
    said = ""
    for mode, seconds in (("fast", FAST_STOP_S), ("immediate", IMMEDIATE_STOP_S)):
        # As the account, so that as root we never signal a process that is not the account's.
        argv = [site.binaries.program("pg_ctl"), "stop", "-D", site.layout.cluster]
        argv += ["-m", mode, "-w", "-t", str(seconds)]
        try:
            done = await run(argv, run_as=site.account, timeout_s=seconds + 5)
        except OSError as error:
            raise PgError(f"Cannot stop PostgreSQL: {error}.") from error
        if done.code == 0 or await feel(site.layout.socket, within_s=ANSWER_S) is Pulse.DEAD:
            return
        said = last_lines(done.output)
    raise PgError(f"PostgreSQL did not stop: {said}. {end_of_log(site.layout)}")

"""Starting and stopping the server process. Behind the gate only.

Does not decide whether to: `server` does.
"""

import contextlib
from collections.abc import Mapping
from typing import Final

import msgspec

from chatd.pg.account import Account
from chatd.pg.binaries import Binaries
from chatd.pg.cluster import clear_stale_lock, last_lines
from chatd.pg.config import server_settings
from chatd.pg.dirs import OwnFile
from chatd.pg.errors import PgError
from chatd.pg.log import bound_log, log_size, open_log, read_since
from chatd.pg.places import Layout
from chatd.pg.process import launch, run
from chatd.pg.pulse import Pulse, feel, wait_until_usable
from chatd.pg.waiting import Patience

START_S: Final = 30.0  # A killed server's last backends keep its memory for a second or two.
ANSWER_S: Final = 2.0
SILENCE_S: Final = 15.0
FAST_STOP_S: Final = 30
IMMEDIATE_STOP_S: Final = 10

LINGERING: Final = ("lock file", "is still in use", "shared memory block")


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is settled before a server is started."""

    layout: Layout
    binaries: Binaries
    account: Account | None
    settings: Mapping[str, str]


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


async def start_server(site: Site, *, within_s: float = START_S) -> None:
    """Bring up a server where none listens, trying again while a dead one is still leaving."""
    patience = Patience(within_s)
    while not await _try_start(site, patience):
        if not await patience.again():
            raise PgError(
                f"PostgreSQL could not be started within {within_s:.0f} s: remains of an earlier "
                f"server hold {site.layout.cluster}. {_end_of_log(site.layout)}"
            )
    await wait_until_usable(site.layout.socket_dir)


async def _try_start(site: Site, patience: Patience) -> bool:
    """True when it listens, False when it may help to try again."""
    try:
        clear_stale_lock(site.layout)
        bound_log(site.layout)
        log = open_log(site.layout)
    except OSError as error:
        raise PgError(f"Cannot start PostgreSQL in {site.layout.data_dir}: {error}.") from error
    with contextlib.closing(log):
        return await _launch_and_watch(site, log, patience)


async def _launch_and_watch(site: Site, log: OwnFile, patience: Patience) -> bool:
    begin = log_size(log)
    try:
        process = launch(_command(site), run_as=site.account, log_fd=log.fd)
    except OSError as error:
        raise PgError(f"Cannot run {site.binaries.program('postgres')}: {error}.") from error
    while await feel(site.layout.socket, within_s=ANSWER_S) is not Pulse.ALIVE:
        if process.exited:
            said = read_since(log, begin)
            if may_pass(said):
                return False
            raise PgError(f"PostgreSQL did not start. Its log says:\n{last_lines(said)}")
        if not await patience.again():
            raise PgError(f"PostgreSQL does not answer. {_end_of_log(site.layout)}")
    return True


def _command(site: Site) -> list[str]:
    settings = server_settings(site.layout.socket_dir, site.settings)
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    return [str(site.binaries.program("postgres")), "-D", str(site.layout.cluster), *options]


def may_pass(log: str) -> bool:
    """Whether the refusal is about remains of an earlier server, which go away by themselves."""
    return any(sign in log for sign in LINGERING)


async def stop_server(site: Site) -> None:
    """Fast shutdown: open transactions roll back, everything committed is written."""
    for mode, seconds in (("fast", FAST_STOP_S), ("immediate", IMMEDIATE_STOP_S)):
        # As the account, so that as root we never signal a process that is not the account's.
        argv = [site.binaries.program("pg_ctl"), "stop", "-D", site.layout.cluster, "-m", mode]
        try:
            done = await run(
                [*argv, "-w", "-t", str(seconds)], run_as=site.account, timeout_s=seconds + 5
            )
        except OSError as error:
            raise PgError(f"Cannot stop PostgreSQL: {error}.") from error
        if done.code == 0 or await feel(site.layout.socket, within_s=ANSWER_S) is Pulse.DEAD:
            return
    raise PgError(f"PostgreSQL did not stop: {last_lines(done.output)}. {_end_of_log(site.layout)}")


def _end_of_log(layout: Layout) -> str:
    with contextlib.closing(open_log(layout)) as log:
        return f"{layout.log} ends with:\n{last_lines(read_since(log, 0))}"

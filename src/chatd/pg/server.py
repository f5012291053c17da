"""Open the database: an external server, or an embedded one, created on first use and shared by
processes.

The first process starts the embedded server, the last one to close stops it, and any of them
restarts it after it has died.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from chatd.log_event import LogEvent
from chatd.pg.binaries import Binaries, copy_for_account, find_binaries, remove_other_copies
from chatd.pg.config import (
    USER,
    ClusterLayout,
    EmbeddedConfig,
    PgError,
    choose_data_dir,
    choose_socket_dir,
    connection_url,
    is_durable,
)
from chatd.pg.directories import (
    LockTimeout,
    UserLock,
    create_data_dir,
    create_private_dir,
    directory_error,
    require_reachable,
    start_stop_lock,
)
from chatd.pg.postmaster import (
    ServerPlan,
    StillRecovering,
    bound_log,
    is_up,
    start_server,
    stop_server,
)
from chatd.pg.process import Account, choose_account, last_lines, run

# Create a cluster on disk.
#
# initdb runs under another name and the result is renamed when complete, so that a cluster left
# unfinished by a power cut is never used.

INITDB_TIMEOUT_S: Final = 180.0
UNFINISHED: Final = "cluster.new-"
BUILTIN_LOCALES_SINCE: Final = 17


def require_cluster(cluster: Path) -> None:
    if not cluster.exists():
        raise PgError(
            f"The database in {cluster} has vanished while it was in use. Restore it (or mount "
            "its file system again); restart chatd to begin with an empty one."
        )


async def create_cluster(
    layout: ClusterLayout, binaries: Binaries, account: Account | None, *, durable: bool
) -> None:
    """Run initdb and rename its result. Call it under the start/stop lock."""
    for path in layout.data_dir.glob(f"{UNFINISHED}*"):
        shutil.rmtree(path, ignore_errors=True)
    # A new name each time: the initdb of a killed chatd may still be writing to the last one.
    unfinished = layout.data_dir / f"{UNFINISHED}{secrets.token_hex(4)}"
    try:
        create_private_dir(unfinished, account)
        argv = initdb_command(binaries, unfinished, durable=durable)
        done = await run(argv, run_as=account, timeout_s=INITDB_TIMEOUT_S)
        if done.code != 0:
            raise PgError(explain_failed_initdb(layout.data_dir, done.output))
        unfinished.rename(layout.cluster)
        _sync_dir(layout.data_dir)
    except OSError as error:
        raise PgError(f"Cannot create the database in {layout.data_dir}: {error}.") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def initdb_command(binaries: Binaries, target: Path, *, durable: bool) -> list[str | Path]:
    argv: list[str | Path] = [
        binaries.program("initdb"),
        f"--pgdata={target}",
        f"--username={USER}",
        # The mode of the socket's directory restricts access; there is no TCP port.
        "--auth-local=trust",
        "--auth-host=reject",
        "--encoding=UTF8",
        "--locale=C",
        "--no-instructions",
    ]
    if binaries.major >= BUILTIN_LOCALES_SINCE:
        # Sorts as C does, and knows upper and lower case beyond ASCII, on every host.
        argv += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    return argv if durable else [*argv, "--no-sync"]


def _sync_dir(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def explain_failed_initdb(data_dir: Path, output: str) -> str:
    end = last_lines(output)
    if "No space left on device" in output or "Disk quota exceeded" in output:
        return (
            f"There is not enough disk space for the database in {data_dir}: it needs about 40 MB "
            f"at first. Free some space or choose another data directory. initdb printed:\n{end}"
        )
    return f"Creating the database in {data_dir} failed. initdb printed:\n{end}"


log: Final = logging.getLogger(__name__)

LEAVE_TIMEOUT_S: Final = 20.0


class ExternalServer:
    """A server that the operator runs; chatd does not start or stop it."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    @property
    def dsn(self) -> str:
        return self._dsn

    async def ensure_running(self) -> None:
        pass

    async def close(self) -> None:
        pass


class EmbeddedServer:
    """This process's use of the shared server."""

    def __init__(self, plan: ServerPlan, user_lock: UserLock) -> None:
        self._plan = plan
        self._user_lock = user_lock
        self._mutex = asyncio.Lock()
        self._closed = False

    @property
    def dsn(self) -> str:
        return connection_url(self._plan.layout.socket_dir)

    async def ensure_running(self) -> None:
        """Restart the server if it has died, and return when it is usable. Cheap if it runs.

        A server in recovery counts as running: clients must retry connecting anyway.
        """
        async with self._mutex:
            if self._closed:
                raise PgError("This process has left the database.")
            if await is_up(self._plan):
                with contextlib.suppress(PgError, OSError):  # A long log is not a failure.
                    bound_log(self._plan.layout)
                return
            async with start_stop_lock(self._plan.layout.start_stop_lock):
                # Never initdb here: an empty database would hide the loss of a cluster.
                require_cluster(self._plan.layout.cluster)
                await start_server(self._plan)
            why = "the embedded database had died"
            log.warning(LogEvent(event="database_restarted", explanation=why))

    async def close(self) -> None:
        """Stop using the server; the last user stops it. A second call does nothing."""
        async with self._mutex:
            if self._closed:
                return
            self._closed = True
            lock = start_stop_lock(self._plan.layout.start_stop_lock, timeout_s=LEAVE_TIMEOUT_S)
            try:
                async with lock:
                    await _leave(self._plan, self._user_lock)
            except LockTimeout:
                pass  # Only a process that starts the server holds it this long, and it is a user.
            finally:
                self._user_lock.release()


PostgresServer = ExternalServer | EmbeddedServer


async def open_server(config: EmbeddedConfig, env: Mapping[str, str]) -> PostgresServer:
    """Use the configured server, starting it if it does not run, until `close`."""
    if config.database_url is not None:
        return ExternalServer(config.database_url)
    layout, account = await asyncio.to_thread(_choose_layout, config, env)
    if account is not None:
        await require_reachable(layout.data_dir, account)
    try:
        await asyncio.to_thread(create_data_dir, layout.data_dir, account)
    except OSError as error:
        raise directory_error(layout.data_dir, error) from error
    async with start_stop_lock(layout.start_stop_lock):
        return await _join(await _build_plan(config, env, layout, account))


def _choose_layout(
    config: EmbeddedConfig, env: Mapping[str, str]
) -> tuple[ClusterLayout, Account | None]:
    uid = os.geteuid()
    chosen = choose_data_dir(config.data_dir, env, uid=uid)
    try:
        data_dir = chosen.resolve()
        owner = data_dir.stat().st_uid if data_dir.exists() else uid
        socket_dir = choose_socket_dir(data_dir, owner=owner)
        layout = ClusterLayout(data_dir=data_dir, socket_dir=socket_dir)
        return layout, choose_account(layout, uid=uid)
    except OSError as error:
        raise directory_error(chosen, error) from error


async def _build_plan(
    config: EmbeddedConfig, env: Mapping[str, str], layout: ClusterLayout, account: Account | None
) -> ServerPlan:
    found = await find_binaries(config.bin_dir, env, account=account, cluster=layout.cluster)
    durable = is_durable(config.settings)
    return ServerPlan(
        layout=layout,
        binaries=await copy_for_account(found, layout.data_dir, account, durable=durable),
        account=account,
        settings=config.settings,
        ready_timeout_s=config.ready_timeout_s,
    )


async def _join(plan: ServerPlan) -> EmbeddedServer:
    create_private_dir(plan.layout.socket_dir, plan.account)
    user_lock = UserLock(plan.layout.users_lock)
    try:
        if not plan.layout.cluster.exists():
            durable = is_durable(plan.settings)
            await create_cluster(plan.layout, plan.binaries, plan.account, durable=durable)
        if not await is_up(plan):
            remove_other_copies(plan.layout.data_dir, plan.binaries.bin_dir)
        await start_server(plan)
    except StillRecovering:
        user_lock.release()
        raise
    except BaseException:
        # The server may already run, without any other user.
        with contextlib.suppress(PgError):
            await _leave(plan, user_lock)
        raise
    return EmbeddedServer(plan, user_lock)


async def _leave(plan: ServerPlan, user_lock: UserLock) -> None:
    try:
        if user_lock.is_last() and await is_up(plan):
            await stop_server(plan)
    finally:
        user_lock.release()

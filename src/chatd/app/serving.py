"""The port of the process: bound first, served until the process stops."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from chatd.api.accounts.authenticator import ADMIN_TOKEN_FILE as TOKEN_FILE
from chatd.api.accounts.sign_in import create_link, local_url, sign_in_link
from chatd.api.server import Application, BoundAddress, ListenError, bind
from chatd.api.server import serve as listen
from chatd.app.api_services import build_served_application
from chatd.app.composition import Composition
from chatd.app.database import wait_until_accepted
from chatd.app.replica import Replica
from chatd.app.role import LifecycleCallbacks, ProcessRole, ReadyInfo
from chatd.domain.access.permissions import ADMIN_USER_ID, SystemActor
from chatd.domain.errors import NotFound
from chatd.domain.ids import CredentialId
from chatd.settings.schema import Settings

SERVE_ACTOR: Final = SystemActor(reason="chatd serve")


async def serve_until_stopped(
    built: Composition,
    port: socket.socket | None,
    stop: asyncio.Event,
    *,
    token: str | None,
    callbacks: LifecycleCallbacks,
    migrated: tuple[str, ...],
) -> None:
    """Serve until `stop` is set and the steps in progress have ended. Until then the port stays
    open: clients get an error that says that this replica is stopping."""
    settings, role, clock = built.settings, built.role, built.env.clock
    default = await wait_until_accepted(settings, clock, built.models.default)
    named = "none" if default is None else default.config.name
    given = token is not None or role.serves != "api"

    secret = None
    if callbacks.shows_sign_in_link and role.serves == "api":
        secret = await wait_until_accepted(settings, clock, lambda: _sign_in_secret(built.replica))

    def ready(where: BoundAddress | None) -> None:
        address = settings.server.url or (None if where is None else local_url(where.url))
        callbacks.ready(
            ReadyInfo(
                url=None if where is None else where.url,
                sign_in_link=None if secret is None else sign_in_link(address or "", secret),
                token_file=None if given else str(settings.data_dir / TOKEN_FILE),
                model=named,
                migrated=migrated,
            )
        )

    if port is None:
        ready(None)
        await _stop_in_order(built.replica, stop, callbacks)
        return
    app = build_served_application(built, token, stop)
    stopped = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(listen(app, port, ready, stopped), name="listen")
        leaving = group.create_task(
            _stop_in_order(built.replica, stop, callbacks, app), name="leave"
        )
        leaving.add_done_callback(lambda _done: stopped.set())


async def _sign_in_secret(replica: Replica) -> str | None:
    """None if the first administrator is suspended or deleted."""
    pool, link_id = replica.database.pool, CredentialId(replica.env.new_id())
    try:
        return (await create_link(pool, SERVE_ACTOR, ADMIN_USER_ID, link_id))[0]
    except NotFound:
        return None


async def _stop_in_order(
    replica: Replica,
    stop: asyncio.Event,
    callbacks: LifecycleCallbacks,
    app: Application | None = None,
) -> None:
    """After `stop`: close the streams while the steps in progress end."""
    await stop.wait()
    callbacks.stopping(replica.worker.running)
    async with asyncio.TaskGroup() as group:
        if app is not None:
            group.create_task(app.close(), name="close streams")
        group.create_task(replica.drain(), name="drain")


@asynccontextmanager
async def bound_port(settings: Settings, role: ProcessRole) -> AsyncGenerator[socket.socket | None]:
    """Bound before anything else: a server that cannot listen must not acquire chats that it
    releases a moment later, at every restart."""
    if role.serves == "nothing":
        yield None
        return
    try:
        port = await bind(settings.server.host, settings.server.port)
    except ListenError as error:
        text = (
            f"{error.message}. Is chatd already running? --host and --port choose another address"
        )
        raise ListenError(f"{text}; port 0 chooses a free one.") from error
    with port:
        yield port

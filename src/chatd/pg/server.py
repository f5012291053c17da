"""The door of this package: start or join the database, keep it up, leave it.

Several processes share one server. The first starts it, the last to leave stops it, and any of
them restarts it when it has died.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Mapping
from typing import Final, Protocol

from chatd.pg import binaries, cluster, relocate
from chatd.pg.account import Account, choose_account
from chatd.pg.config import Config, wants_durability
from chatd.pg.dirs import make_data_dir, make_private_dir, require_way, unusable
from chatd.pg.errors import PgError
from chatd.pg.locks import GateBusy, Membership, gate
from chatd.pg.log import bound_log
from chatd.pg.places import Layout, address, choose_data_dir, choose_socket_dir
from chatd.pg.postmaster import Site, StillRecovering, bring_up, is_up, stop_server

log: Final = logging.getLogger(__name__)

LEAVE_WAIT_S: Final = 20.0


class Server(Protocol):
    """A database to connect to."""

    @property
    def dsn(self) -> str: ...

    async def ensure(self) -> None:
        """Restart the database if it has died, and return when it can be used. Cheap if it lives.

        One that recovers by itself counts as alive: connecting has to be retried anyway.
        """
        ...

    async def close(self) -> None:
        """Leave. The last user stops the server. A second call does nothing."""
        ...


class External:
    """A server that somebody else runs: there is nothing to do for it."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    @property
    def dsn(self) -> str:
        return self._dsn

    async def ensure(self) -> None:
        pass

    async def close(self) -> None:
        pass


class Embedded:
    """Our place at a shared server."""

    def __init__(self, site: Site, membership: Membership) -> None:
        self._site = site
        self._membership = membership
        self._turn = asyncio.Lock()
        self._closed = False

    @property
    def dsn(self) -> str:
        return address(self._site.layout.socket_dir)

    async def ensure(self) -> None:
        async with self._turn:
            if self._closed:
                raise PgError("This process has left the database.")
            if await is_up(self._site):
                with contextlib.suppress(PgError, OSError):  # Not worth failing for.
                    bound_log(self._site.layout)
                return
            async with gate(self._site.layout.gate):
                # Never initdb here: a cluster that has vanished is a loss that must be seen.
                cluster.require(self._site.layout.cluster)
                await bring_up(self._site)
            log.warning("the embedded database had gone and is up again")

    async def close(self) -> None:
        async with self._turn:
            if self._closed:
                return
            self._closed = True
            try:
                async with gate(self._site.layout.gate, within_s=LEAVE_WAIT_S):
                    await _leave(self._site, self._membership)
            except GateBusy:
                pass  # Held for long only by somebody who is starting it, and so is a user.
            finally:
                self._membership.leave()


async def start(config: Config, env: Mapping[str, str]) -> Server:
    """Find the database by `config`, start it if nobody has, and hold on to it until `close`."""
    if config.database_url is not None:
        return External(config.database_url)
    layout, account = await asyncio.to_thread(_settle, config, env)
    if account is not None:
        await require_way(layout.data_dir, account)
    try:
        await asyncio.to_thread(make_data_dir, layout.data_dir, account)
    except OSError as error:
        raise unusable(layout.data_dir, error) from error
    async with gate(layout.gate):
        return await _join(await _survey(config, env, layout, account))


def _settle(config: Config, env: Mapping[str, str]) -> tuple[Layout, Account | None]:
    uid = os.geteuid()
    wish = choose_data_dir(config.data_dir, env, uid=uid)
    try:
        data_dir = wish.resolve()
        owner = data_dir.stat().st_uid if data_dir.exists() else uid
        socket_dir = choose_socket_dir(data_dir, owner=owner)
        layout = Layout(data_dir=data_dir, socket_dir=socket_dir)
        return layout, choose_account(layout, uid=uid)
    except OSError as error:
        raise unusable(wish, error) from error


async def _survey(
    config: Config, env: Mapping[str, str], layout: Layout, account: Account | None
) -> Site:
    found = await binaries.find(config.bin_dir, env, account=account, cluster=layout.cluster)
    found = await relocate.within_reach(
        found, layout.data_dir, account, durable=wants_durability(config.settings)
    )
    return Site(
        layout=layout,
        binaries=found,
        account=account,
        settings=config.settings,
        ready_within_s=config.ready_within_s,
    )


async def _join(site: Site) -> Embedded:
    make_private_dir(site.layout.socket_dir, site.account)
    membership = Membership(site.layout.users)
    try:
        if not site.layout.cluster.exists():
            durable = wants_durability(site.settings)
            await cluster.create(site.layout, site.binaries, site.account, durable=durable)
        if not await is_up(site):
            relocate.remove_other_copies(site.layout.data_dir, site.binaries.bin_dir)
        await bring_up(site)
    except StillRecovering:
        membership.leave()
        raise
    except BaseException:
        # We may have got as far as starting it, and nobody else may want it.
        with contextlib.suppress(PgError):
            await _leave(site, membership)
        raise
    return Embedded(site, membership)


async def _leave(site: Site, membership: Membership) -> None:
    try:
        if membership.is_last() and await is_up(site):
            await stop_server(site)
    finally:
        membership.leave()

"""The door of this package: start or join the database, keep it up, leave it.

Several processes share one server. The first starts it, the last to leave stops it, and any of
them restarts it when it has died.
"""

import asyncio
import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from chatd.pg import binaries, cluster, relocate
from chatd.pg.account import Account, choose_account
from chatd.pg.config import Config, wants_durability
from chatd.pg.dirs import prepare, require_way
from chatd.pg.errors import PgError
from chatd.pg.locks import Membership, gate
from chatd.pg.log import bound_log
from chatd.pg.places import Layout, address, choose_data_dir, layout
from chatd.pg.postmaster import Site, is_up, start_server, stop_server
from chatd.pg.pulse import wait_until_usable


class Server(Protocol):
    """A database to connect to."""

    @property
    def dsn(self) -> str: ...
    async def ensure(self) -> None:
        """Return when the database can be used, restarting it if it has died. Cheap if it lives."""
        ...

    async def close(self) -> None:
        """Leave. The last user stops the server."""
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
                raise PgError("The database has been closed by this process.")
            if await is_up(self._site):
                bound_log(self._site.layout)
                return
            async with gate(self._site.layout.gate):
                # Never initdb here: a cluster that has vanished is a loss that must be seen.
                cluster.require(self._site.layout.cluster)
                await _bring_up(self._site)

    async def close(self) -> None:
        async with self._turn:
            if self._closed:
                return
            self._closed = True
            try:
                async with gate(self._site.layout.gate):
                    await _leave(self._site, self._membership)
            finally:
                self._membership.leave()


async def start(config: Config, env: Mapping[str, str]) -> Server:
    """Find the database by `config`, start it if nobody has, and hold on to it until `close`."""
    if config.database_url is not None:
        return External(config.database_url)
    here, account = await asyncio.to_thread(_settle, config, env)
    if account is not None:
        await require_way(here.data_dir, account)
    await asyncio.to_thread(prepare, here, account)
    async with gate(here.gate):
        site = await _survey(config, env, here, account)
        return await _join(site)


def _settle(config: Config, env: Mapping[str, str]) -> tuple[Layout, Account | None]:
    uid = os.geteuid()
    data_dir: Path = choose_data_dir(config.data_dir, env, uid=uid).resolve()
    here = layout(data_dir, uid=uid)
    return here, choose_account(here.cluster, uid=uid)


async def _survey(
    config: Config, env: Mapping[str, str], here: Layout, account: Account | None
) -> Site:
    found = await binaries.find(config.bin_dir, env, account=account, cluster=here.cluster)
    found = await relocate.within_reach(
        found, here.data_dir, account, durable=wants_durability(config.settings)
    )
    return Site(layout=here, binaries=found, account=account, settings=config.settings)


async def _join(site: Site) -> Embedded:
    membership = Membership(site.layout.users)
    try:
        if not cluster.exists(site.layout.cluster):
            await cluster.create(
                site.layout,
                site.binaries,
                site.account,
                durable=wants_durability(site.settings),
            )
        await _bring_up(site)
    except BaseException:
        # We may have got as far as starting it, and nobody else may want it.
        with contextlib.suppress(PgError):
            await _leave(site, membership)
        raise
    return Embedded(site, membership)


async def _bring_up(site: Site) -> None:
    if await is_up(site):
        await wait_until_usable(site.layout.socket_dir)
    else:
        relocate.remove_other_copies(site.layout.data_dir, site.binaries.bin_dir)
        await start_server(site)


async def _leave(site: Site, membership: Membership) -> None:
    try:
        if membership.is_last() and await is_up(site):
            await stop_server(site)
    finally:
        membership.leave()

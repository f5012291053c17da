"""Servers and runners on hosts of their own have random accidents while chats run counted commands.

`make chaos ARGS=--runners` does this for ten minutes with three servers and three runners, each in
a network namespace, and one database. ARGS="--runners --seconds 60 --seed 7" repeats the same
random choices as far as timing allows. Every command appends its name to a file of its workspace.
At the end these files are compared with what the model was told: a command that succeeded ran once,
one whose outcome is said to be unknown ran once at most, one that was refused did not run, and
every chat goes on.
"""

import argparse
import asyncio
import random
import secrets
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec
from aiohttp import ClientSession
from msgspec import Struct

from chatd.store.database.conn import ConnectConfig
from chatd.store.database.pool import Pool, PoolConfig
from tests.support.chaos.killable_server import killable_server
from tests.support.chaos.namespace_hosts import HostNetwork, host_network, missing_reason
from tests.support.chaos.runner_accidents import ACCIDENTS, RunnerAccidents
from tests.support.chaos.runner_site import (
    PEER_PORT,
    POOL,
    START_TIMEOUT_S,
    TURN_TIMEOUT_S,
    Client,
    CommandChat,
    CommandModel,
    CommandVerdict,
    RunnerMachine,
    ServerMachine,
    give_token,
    wait_settled,
)
from tests.support.chaos.servers import TOKEN
from tests.support.database import scratch_space
from tests.support.relay import Relay
from tests.support.stored import check_all, stored


class RunnerSoak(Struct, frozen=True, kw_only=True):
    seed: int
    seconds: float = 600.0
    servers: int = 3
    runners: int = 3
    chats: int = 6
    weights: Mapping[str, int]
    keeps_files: bool = False

    async def run(self, dsn: str) -> str:
        """Returns a summary. Raises AssertionError if a promise was broken."""
        async with AsyncExitStack() as stack:
            network = stack.enter_context(host_network())
            place = Path(tempfile.mkdtemp(prefix="chatd-rs-", dir=scratch_space()))
            if not self.keeps_files:
                stack.callback(shutil.rmtree, place, ignore_errors=True)
            _say(f"files in {place}")
            servers, runners = await self._start(dsn, network, place, stack)
            http = await stack.enter_async_context(ClientSession())
            client = Client(http, servers)
            front = await stack.enter_async_context(
                Relay(*(server.url for server in servers)).listening(network.address)
            )
            await client.ask("GET", "/runners")
            body = {"name": POOL, "backend": "sandbox", "spec": {"pool": POOL}}
            template = (await client.ask("POST", "/template-configs", body))["id"]
            for runner in runners:
                runner.server = front.url
                await give_token(client, runner)
                await runner.start()
            dice = random.Random(self.seed)
            accidents = RunnerAccidents(
                servers, runners, front, client, random.Random(dice.random()), self.weights
            )
            chats = [
                CommandChat(number, client, template, random.Random(dice.random()))
                for number in range(1, self.chats + 1)
            ]
            try:
                return await self._judge(dsn, chats, accidents, runners)
            except BaseException as error:
                error.add_note("\n".join(("accidents:", *accidents.log)))
                raise

    async def _start(
        self, dsn: str, network: HostNetwork, place: Path, stack: AsyncExitStack
    ) -> tuple[Sequence[ServerMachine], Sequence[RunnerMachine]]:
        kits = place / "kits"
        kits.mkdir()
        model = await stack.enter_async_context(CommandModel.running())
        at = network.address
        model_at = await stack.enter_async_context(Relay(model.url).listening(at))
        database = urlsplit(dsn)
        named = parse_qs(database.query)
        socket = f"{named['host'][0]}/.s.PGSQL.{named.get('port', ['5432'])[0]}"
        database_at = await stack.enter_async_context(Relay(socket).listening(at))
        user = f"{database.username}:{database.password or ''}"
        there = f"postgresql://{user}@{database_at.address}{database.path}?sslmode=disable"
        provider = {"name": "fake", "kind": "openai-compat", "base_url": f"{model_at.url}/v1"}
        entry = {"name": "fake", "provider": "fake", "model": "fake-1", "default": True}
        servers: list[ServerMachine] = []
        for number in range(1, self.servers + 1):
            server = ServerMachine(network.host(f"s{number}"), place, kits)
            server.env = {
                "CHATD_ADMIN_TOKEN": TOKEN,
                "CHATD_SECRET": "a secret of the whole deployment",
                "CHATD_SERVER_PEER_ADDRESS": f"{server.host.address}:{PEER_PORT}",
                "CHATD_DATABASE_URL": there,
                "CHATD_DATABASE_POOL_SIZE": "5",
                "CHATD_LOG_LEVEL": "info",
                "CHATD_PROVIDERS": msgspec.json.encode([provider]).decode(),
                "CHATD_MODELS": msgspec.json.encode([entry]).decode(),
            }
            stack.push_async_callback(server.close)
            await server.start()
            servers.append(server)
        runners = [
            RunnerMachine(network.host(f"r{number}"), place, kits)
            for number in range(1, self.runners + 1)
        ]
        for runner in runners:
            stack.push_async_callback(runner.close)
        return servers, runners

    async def _judge(
        self,
        dsn: str,
        chats: Sequence[CommandChat],
        accidents: RunnerAccidents,
        runners: Sequence[RunnerMachine],
    ) -> str:
        # Each chat has its workspace before the first accident.
        async with asyncio.timeout(START_TIMEOUT_S):
            await asyncio.gather(*(chat.turn([0.0]) for chat in chats))
        with suppress(TimeoutError):
            async with asyncio.timeout(self.seconds), asyncio.TaskGroup() as group:
                group.create_task(accidents.run())
                for chat in chats:
                    group.create_task(chat.run())
        failed = await accidents.complete()
        _say(f"accidents: {dict(accidents.counts)}")
        pool = Pool(PoolConfig(connect=ConnectConfig(dsn=dsn)))
        try:
            await wait_settled(pool)
            async with asyncio.timeout(TURN_TIMEOUT_S):
                lasts = await asyncio.gather(*(chat.turn([0.0, 0.0, 0.0]) for chat in chats))
            everything = await stored(pool)
        finally:
            await pool.close()
        ran: Counter[str] = Counter()
        for runner in runners:
            ran += runner.ran()
        check_all(everything, {})
        verdict = CommandVerdict(ran)
        verdict.check(everything)
        verdict.broken += failed
        # A step during which several servers died may have killed them, and is not tried again.
        errors = Counter(error for chat in chats for error in chat.failed)
        verdict.broken += [f"a turn ended in {kind}" for kind in errors if kind != "crashed"]
        verdict.broken += [
            f"{name} did not run in the end"
            for name in (f"{last.removesuffix('0')}2" for last in lasts)
            if ran[name] != 1
        ]
        for text, times in verdict.texts.most_common(20):
            _say(f"  {times} times: {text}")
        assert not verdict.broken, "\n".join(verdict.broken)
        told = f"the model was told: {dict(verdict.counts)}; turns failed: {dict(errors)}"
        return f"{sum(ran.values())} commands ran; {told}"


async def _main(soak: RunnerSoak) -> str:
    async with killable_server() as server:
        return await soak.run(server.dsn)


def main(args: Sequence[str]) -> int:
    soak = _config(args)
    if reason := missing_reason():
        _say(f"runners: not run, because {reason}. Each server and runner needs its own network.")
        return 2
    _say(f"seed {soak.seed}, {soak.seconds:g} seconds")
    try:
        told = asyncio.run(_main(soak))
    except BaseException:
        _say(f"seed {soak.seed}: a promise was broken, or the test failed")
        raise
    _say(f"seed {soak.seed}: nothing lost, doubled or stuck; {told}")
    return 0


def _config(args: Sequence[str]) -> RunnerSoak:
    width = max(map(len, ACCIDENTS))
    rows = (f"  {name:{width}} {weight:4}  {does}" for name, (weight, does) in ACCIDENTS.items())
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.soak --runners",
        description=__doc__,
        epilog="\n".join(("accidents, with how often each occurs:", *rows)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000))
    parser.add_argument("--chats", type=int, default=6)
    parser.add_argument("--only", nargs="+", choices=list(ACCIDENTS), metavar="NAME")
    parser.add_argument("--keep", action="store_true", help="keep logs and workspaces")
    asked = parser.parse_args(args)
    kept = asked.only or list(ACCIDENTS)
    return RunnerSoak(
        seed=asked.seed,
        seconds=asked.seconds,
        chats=asked.chats,
        weights={name: ACCIDENTS[name][0] for name in kept},
        keeps_files=asked.keep,
    )


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()

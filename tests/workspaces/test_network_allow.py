"""The network `allow` in real sandboxes: programs inside, the proxy and servers outside."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from chatd.clock import SystemClock
from chatd.domain.workspace.network import read_refusals
from chatd.services.workspaces.people_access import AgentFiles
from chatd.workspaces.local.local_backend import LocalConfig
from chatd.workspaces.network.inside import INSIDE_NETWORK, REFUSALS_FILE
from chatd.workspaces.network.workspace_networks import WorkspaceNetworks
from tests.support.backend_rig import HOST, TEST_TIMEOUT_S
from tests.support.eventually import eventually
from tests.support.local_rig import (
    NO_BUBBLEWRAP,
    LocalRig,
    data_directory,
    open_rig,
    shared_kits,
)
from tests.support.network_names import TestNetwork

pytestmark = pytest.mark.skipif(NO_BUBBLEWRAP, reason="bubblewrap is not installed")
PUBLIC = "93.184.215.14"
URL = "http://example.com/"
FETCH = "python3 -c 'import urllib.request as r; print(r.urlopen(\"%s\").read().decode())' 2>&1"


class GreetingServer:
    def __init__(self) -> None:
        self.port = 0
        self.asked = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.asked += 1
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
        writer.close()


@asynccontextmanager
async def greeting() -> AsyncGenerator[GreetingServer]:
    server = GreetingServer()
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    async with listener:
        yield server


@pytest.fixture
async def server() -> AsyncGenerator[GreetingServer]:
    async with greeting() as found:
        yield found


@pytest.fixture
async def rig(
    server: GreetingServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[LocalRig]:
    network = TestNetwork({"example.com": [[PUBLIC]]}, {PUBLIC: server.port})
    with data_directory(shared_kits(tmp_path_factory)) as data_dir:
        config = LocalConfig(data_dir=data_dir, host_id=HOST)
        async with open_rig(config, network.dialer) as found:
            yield found


def refusals_path(rig: LocalRig, name: str) -> Path:
    return rig.data_dir / "ws-network" / name / "inside" / REFUSALS_FILE


async def test_a_workspace_reaches_the_hosts_that_its_template_names_and_no_other(
    rig: LocalRig, server: GreetingServer
) -> None:
    """Takes seconds: a sandbox is built and runs a dozen commands."""
    spec = rig.template(
        network="allow",
        allow=("example.com",),
        startup_script=f"{FETCH % URL} > at-start",
    )
    running = await rig.start(spec)
    assert running.agent.network == "allow"
    assert await rig.output_of(running, "cat at-start") == "hello"
    assert await rig.output_of(running, FETCH % URL) == "hello"
    assert await rig.output_of(running, f"curl -sS {URL}") == "hello"
    assert await rig.output_of(running, f"curl -sS -p {URL}") == "hello"
    asked = server.asked

    refused = await rig.output_of(running, "curl -sS http://evil.example/")
    assert "This workspace may not reach evil.example:80. Its template allows: example.com." in (
        refused
    )
    tunnel = await rig.output_of(running, FETCH % "https://evil.example/")
    assert "403 This workspace may not reach evil.example:443" in tunnel
    for url in (f"http://127.0.0.1:{server.port}/", f"http://[::1]:{server.port}/"):
        straight = await rig.run(running, f"curl -sS --noproxy '*' {url}")
        assert straight.exit_code != 0
        proxied = await rig.output_of(running, f"curl -sS --noproxy '' {url}")
        assert "may not reach" in proxied
    metadata = await rig.output_of(running, "curl -sS http://169.254.169.254/latest/meta-data/")
    assert "may not reach 169.254.169.254:80" in metadata
    links = await rig.output_of(running, "tail -n +3 /proc/net/dev | cut -d: -f1")
    assert links.split() == ["lo"]
    assert server.asked == asked

    await rig.backend.networks.write_refusals()
    seen = read_refusals(refusals_path(rig, running.name).read_bytes())
    assert {f"{each.host}:{each.port}" for each in seen} == {
        "evil.example:80",
        "evil.example:443",
        "169.254.169.254:80",
        f"127.0.0.1:{server.port}",
        f"::1:{server.port}",
    }
    agent = AgentFiles(await rig.connect(running), SystemClock(), lambda: None)
    assert await agent.refusals() == seen
    inside = await rig.output_of(running, f"cat {INSIDE_NETWORK}/{REFUSALS_FILE}")
    assert read_refusals(inside.encode()) == seen
    spoiled = await rig.run(running, f"touch {INSIDE_NETWORK}/x || rm {INSIDE_NETWORK}/proxy.sock")
    assert spoiled.exit_code != 0


async def test_another_process_serves_a_workspace_whose_runner_has_died(
    rig: LocalRig, server: GreetingServer
) -> None:
    """Takes seconds: a sandbox is built."""
    running = await rig.start(rig.template(network="allow", allow=("example.com",)))
    await rig.backend.networks.release_all()
    network = TestNetwork({"example.com": [[PUBLIC]]}, {PUBLIC: server.port})
    successor = WorkspaceNetworks(rig.data_dir, SystemClock(), network.dialer)
    serving = asyncio.get_running_loop().create_task(successor.run())
    try:
        assert await rig.output_of(running, f"curl -sS {URL}") == "hello"
        assert network.connected == [(PUBLIC, 80)]
        assert "may not" in await rig.output_of(running, "curl -sS http://evil.example/")

        async def is_written() -> bool:
            return refusals_path(rig, running.name).exists()

        await eventually(is_written, within_s=TEST_TIMEOUT_S)
    finally:
        serving.cancel()
        await asyncio.wait({serving})


async def test_a_changed_template_counts_from_the_next_start(
    rig: LocalRig, server: GreetingServer
) -> None:
    """Takes seconds: a sandbox is built three times."""
    spec = rig.template(network="allow", allow=("pypi.org",))
    running = await rig.start(spec)
    assert "may not reach example.com:80" in await rig.output_of(running, f"curl -sS {URL}")
    wider = msgspec.structs.replace(spec, allow=("pypi.org", "example.com"))
    running = await rig.start(wider, again=running.workspace.id, build=2)
    assert await rig.output_of(running, f"curl -sS {URL}") == "hello"
    await rig.backend.networks.write_refusals()
    seen = read_refusals(refusals_path(rig, running.name).read_bytes())
    assert [each.host for each in seen] == ["example.com"]
    running = await rig.start(rig.template(), again=running.workspace.id, build=3)
    assert running.agent.network == "none"
    left = f"ls {INSIDE_NETWORK} 2>/dev/null || env | grep -i _proxy"
    assert await rig.output_of(running, left) == ""
    await rig.delete(running.workspace.id, build=4)
    assert not (rig.data_dir / "ws-network" / running.name).exists()

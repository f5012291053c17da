"""Credentials in real sandboxes: git, curl, Python and Node use them, and none is inside."""

import asyncio
import shutil
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from chatd.agent.browser.browser_server import find_browser
from chatd.clock import SystemClock
from chatd.domain.workspace.agent_api import AgentRefused, BrowserAction
from chatd.domain.workspace.entities import GitSeed
from chatd.domain.workspace.host_credentials import git_credential, make_credential
from chatd.domain.workspace.network import Refusal, read_refusals
from chatd.workspaces.agents.agent_client import AgentClient, ChatIdentity
from chatd.workspaces.local.local_backend import LocalConfig
from chatd.workspaces.network import workspace_networks
from chatd.workspaces.network.inside import INSIDE_NETWORK, REFUSALS_FILE
from chatd.workspaces.network.workspace_networks import WorkspaceNetworks
from tests.support.backend_rig import HOST as HOST_ID
from tests.support.backend_rig import TEST_TIMEOUT_S
from tests.support.eventually import eventually
from tests.support.git_hosts import GitHost
from tests.support.local_rig import (
    NO_BUBBLEWRAP,
    LocalRig,
    data_directory,
    open_rig,
    shared_kits,
)
from tests.support.network_names import TestNetwork
from tests.support.outcomes import raised
from tests.support.tls_hosts import TlsHosts
from tests.workspaces.agent_process import new_chat_id

pytestmark = pytest.mark.skipif(NO_BUBBLEWRAP, reason="bubblewrap is not installed")
PUBLIC = "93.184.215.14"
HOST = "git.example.com"
TOKEN = "ghp_0123456789abcdefghij"
URL = f"https://{HOST}/ada/app.git"
COMMIT = "git -c user.name=Ada -c user.email=a@example.com commit -q --allow-empty -m second"
PYTHON = "python3 -c 'import urllib.request as r; print(r.urlopen(\"%s\").read().decode())'"
NODE = """node -e '
const http = require("http"), tls = require("tls")
http.request({port: 17870, method: "CONNECT", path: "%(host)s:443"}).on("connect", (_, socket) => {
  const inner = tls.connect({socket, servername: "%(host)s"}, () =>
    inner.write("GET /echo HTTP/1.1\\r\\nHost: %(host)s\\r\\nConnection: close\\r\\n\\r\\n"))
  inner.pipe(process.stdout)
}).end()'
"""


@pytest.fixture
def host(tmp_path: Path) -> GitHost:
    (tmp_path / "ada").mkdir()
    found = GitHost(tmp_path, "x-access-token", TOKEN)
    found.create("ada/app.git")
    return found


@pytest.fixture
async def rig(host: GitHost, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[LocalRig]:
    hosts = TlsHosts()
    async with hosts.serving(HOST, host.serve) as port:
        network = TestNetwork({HOST: [[PUBLIC]]}, {PUBLIC: port})
        dialer = replace(network.dialer, tls=hosts.client_context)
        with data_directory(shared_kits(tmp_path_factory)) as data_dir:
            config = LocalConfig(data_dir=data_dir, host_id=HOST_ID)
            async with open_rig(config, dialer) as found:
                yield found


async def written_refusals(networks: WorkspaceNetworks, path: Path) -> Sequence[Refusal]:
    """Once there are any: the client's alert may still be on its way."""

    def read() -> Sequence[Refusal] | None:
        return read_refusals(path.read_bytes()) if path.exists() else None

    async def written() -> Sequence[Refusal] | None:
        await networks.write_refusals()
        return read()

    return await eventually(written, within_s=TEST_TIMEOUT_S)


async def test_git_clones_and_pushes_with_a_token_that_is_not_in_the_workspace(
    rig: LocalRig, host: GitHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Takes seconds: a sandbox is built and runs a dozen commands."""
    token = git_credential(HOST, "github", TOKEN)
    assert token is not None
    page = make_credential(
        host=HOST, path="/echo", scheme="basic", username="x-access-token", secret=TOKEN
    )
    rig.credentials = [token, page]
    spec = rig.template(
        seed=GitSeed(url=URL),
        network="allow",
        allow=(HOST,),
        startup_script="git fetch origin && git log --format=%s origin/main > at-start",
    )
    running = await rig.start(spec)
    assert host.refused == 0
    assert await rig.output_of(running, "cat at-start") == "the first"
    pushed = await rig.run(running, f"{COMMIT} && git push -q origin HEAD:main && git pull -q")
    assert pushed.exit_code == 0, pushed.output
    log = await asyncio.create_subprocess_exec(
        *("git", "-C", str(tmp_path / "ada/app.git"), "log", "--format=%s", "main"),
        stdout=asyncio.subprocess.PIPE,
    )
    assert (await log.communicate())[0].split() == [b"second", b"the", b"first"]

    programs = [f"curl -sS https://{HOST}/echo", PYTHON % f"https://{HOST}/echo"]
    if shutil.which("node", path="/usr/bin:/bin") is not None:
        programs.append(NODE % {"host": HOST})
    for command in programs:
        repeated = await rig.output_of(running, command)
        assert f"authorization: Basic {'*' * 16}" in repeated, repeated
        assert TOKEN not in repeated
    # The files and processes of the workspace, its variables, and git's own trace.
    for command in (
        f"grep -rls {TOKEN[:9]} /home /run /tmp /etc /mnt",
        "env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline",
        f"ls -R {INSIDE_NETWORK}; cat {INSIDE_NETWORK}/*.pem",
        "GIT_TRACE_CURL=1 git ls-remote 2>&1",
    ):
        found = await rig.output_of(running, command)
        assert TOKEN not in found
        assert "PRIVATE KEY" not in found
    assert not any(TOKEN in line for line in rig.log)

    # Another account of the host could not read what the proxy keeps, and none of it is the token.
    top = rig.data_dir / "ws-network" / running.name
    assert (top / "authority.pem").stat().st_mode & 0o077 == 0
    for path in rig.data_dir.rglob("*"):
        if path.is_file():
            assert TOKEN.encode() not in path.read_bytes(), path

    # Revoked: the next request is without it. The workspace was not built again.
    rig.backend.networks.grant(running.workspace.id, [])
    refused = await rig.run(running, "GIT_TERMINAL_PROMPT=0 git ls-remote 2>&1")
    assert refused.exit_code != 0
    # Not revoked, but the server was not heard of for long: the same.
    monkeypatch.setattr(workspace_networks, "CREDENTIALS_KEPT_S", -1.0)
    rig.backend.networks.grant(running.workspace.id, rig.credentials)
    assert (await rig.run(running, "GIT_TERMINAL_PROMPT=0 git ls-remote 2>&1")).exit_code != 0
    monkeypatch.undo()

    # Another process takes the proxy over, with the same authority.
    await rig.backend.networks.release_all()
    successor = WorkspaceNetworks(rig.data_dir, SystemClock(), rig.backend.networks.dialer)
    serving = asyncio.get_running_loop().create_task(successor.run())
    try:
        successor.grant(running.workspace.id, rig.credentials)
        again = await rig.run(running, "git ls-remote origin main 2>&1")
        assert again.exit_code == 0, again.output
        distrust = await rig.run(
            running, f"SSL_CERT_FILE=/dev/null CURL_CA_BUNDLE=/dev/null curl -sS https://{HOST}/"
        )
        assert distrust.exit_code != 0
        seen = await written_refusals(successor, top / "inside" / REFUSALS_FILE)
        assert [(each.host, each.reason) for each in seen] == [(HOST, "untrusted_certificate")]
    finally:
        serving.cancel()
        await asyncio.wait({serving})


async def test_a_seed_of_a_template_without_a_network_is_cloned_with_the_token(
    rig: LocalRig, host: GitHost
) -> None:
    """Takes a second: a sandbox is built."""
    token = git_credential(HOST, "github", TOKEN)
    assert token is not None
    rig.credentials = [token]
    running = await rig.start(rig.template(seed=GitSeed(url=URL)))
    assert host.refused == 0
    assert await rig.output_of(running, "git log --format=%s") == "the first"
    assert await rig.output_of(running, "env | grep CERT") == ""
    assert not (rig.data_dir / "ws" / running.name / "clone").exists()


@pytest.mark.skipif(find_browser() is None, reason="needs Debian's package chromium")
async def test_the_browser_trusts_the_authority_and_reaches_allowed_hosts_only(
    rig: LocalRig,
) -> None:
    """Takes seconds: a sandbox is built, and a browser is started in it."""
    rig.credentials = [
        make_credential(
            host=HOST, path="/echo", scheme="basic", username="x-access-token", secret=TOKEN
        )
    ]
    running = await rig.start(rig.template(network="allow", allow=(HOST,), browser=True))
    identity = ChatIdentity(chat_id=new_chat_id(), epoch=1)
    agent = AgentClient(await rig.connect(running), SystemClock(), identity)
    action = BrowserAction(action="open", url=f"https://{HOST}/echo")
    opened = await agent.use_browser(action, key="open")
    assert f"authorization: Basic {'*' * 16}" in opened.text, opened
    other = BrowserAction(action="open", url="https://evil.example/")
    told = await raised(AgentRefused, agent.use_browser(other, key="other"))
    assert "the network of the workspace does not allow this host" in told.message

"""Work in the current directory: the runner that `--here` starts and ends, the workspace of the
directory, and a server for it if none runs on this machine.

The runner is a child process that ends with this one. Its data directory follows from the server,
the directory and the kind of isolation, and its workspace is found by it: coming back continues.
"""

import asyncio
import fcntl
import hashlib
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final, Literal

from msgspec import Struct

from chatd import sealed_secrets
from chatd.cli.api_session import UsageProblem, patient
from chatd.cli.output import print_notice
from chatd.cli.target import read_address
from chatd.client.errors import ApiError
from chatd.client.resources import Workspace, WorkspaceBuild
from chatd.client.server import ServerApi
from chatd.domain.errors import ChatdError
from chatd.domain.ids import ChatId, WorkspaceId
from chatd.domain.workspace.runners import DIRECTORY_PARAMETER
from chatd.settings.config_file import default_data_dir
from chatd.settings.schema import SettingsError

CHATD: Final = (sys.executable, "-P", "-c", "from chatd.cli.main import main; main()")
"""Without the current directory in the path of modules: it is not chatd's."""
ID_FILE: Final = "runner-id"
AGREED_FILE: Final = "no-sandbox"
USERS_FILE: Final = "users.lock"
RUNNER_LOG: Final = "runner.log"
SERVER_LOG: Final = "serve.log"
SERVER_START_TIMEOUT_S: Final = 180.0
RUNNER_START_TIMEOUT_S: Final = 60.0
BUILD_TIMEOUT_S: Final = 120.0
AGENT_PATIENCE_S: Final = 15.0
"""An agent that still runs from an earlier command is reached again within this time."""
STOP_TIMEOUT_S: Final = 10.0
POLL_S: Final = 0.1
BUSY_STATUSES: Final = ("running", "interrupting", "requires_action")
MAX_LISTED_CHATS: Final = 200

NetworkChoice = Literal["none", "full"]


class HereFailed(ChatdError):
    code = "here_failed"


class HereChoice(Struct, frozen=True, kw_only=True):
    """`agreed`: `--yes` was given."""

    directory: Path
    network: NetworkChoice = "none"
    sandbox: bool = True
    agreed: bool = False


class HerePlace(Struct, frozen=True, kw_only=True):
    """The workspace of the directory."""

    workspace_id: WorkspaceId
    name: str
    directory: Path


# A server on this machine


def ensure_server(data_dir: Path, env: Mapping[str, str]) -> None:
    """Start a server with this data directory unless one runs. It outlives this command. Raises
    HereFailed."""
    if read_address(data_dir) is not None:
        return
    log = data_dir / SERVER_LOG
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            started = subprocess.Popen(
                [*CHATD, "serve", "--data-dir", str(data_dir), "--no-browser"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # A chatd.toml of the current directory may be somebody else's.
                cwd=env.get("HOME") or "/",
                start_new_session=True,
            )
    except OSError as error:
        raise HereFailed(f"No server can be started in {data_dir}: {error.strerror}.") from None
    print_notice(f"No server runs on this machine. Starting one with its data in {data_dir} ...")
    deadline = time.monotonic() + SERVER_START_TIMEOUT_S
    while read_address(data_dir) is None:
        if started.poll() is not None:
            raise HereFailed(f"The server did not start: {_last_line(log)}\n  Its log is {log}.")
        if time.monotonic() > deadline:
            raise HereFailed(f"The server does not become ready. Its log is {log}.")
        time.sleep(POLL_S)
    print_notice(
        f"It stays when this command ends (process {started.pid}); to stop it: kill {started.pid}"
    )


def _last_line(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1].removeprefix("chatd: ") if lines else "it printed nothing"


# The runner


def runner_data_dir(choice: HereChoice, server_url: str, env: Mapping[str, str], uid: int) -> Path:
    """The same for the same directory at the same server. Raises SettingsError."""
    named = env.get("CHATD_DATA_DIR")
    beside = Path.cwd() / named if named else default_data_dir(env, uid=uid)
    if beside is None:
        raise SettingsError("--here needs a home directory, for the data of its runner")
    kind = "sandbox" if choice.sandbox else "machine"
    key = "\0".join((server_url, str(choice.directory), kind))
    return beside.with_name(f"{beside.name}-here") / hashlib.sha256(key.encode()).hexdigest()[:16]


def agree_to_no_sandbox(choice: HereChoice, data_dir: Path) -> None:
    """Ask once for each directory. Raises UsageProblem."""
    agreed = data_dir / AGREED_FILE
    if agreed.exists():
        return
    if not choice.agreed:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise UsageProblem(
                "--no-sandbox asks first, and there is no terminal to ask at: say --yes"
            )
        sys.stderr.write(
            f"Without a sandbox, commands of chats in {choice.directory} can do everything that you"
            " can on this machine. Go on? [y/N] "
        )
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise UsageProblem("nothing was started")
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    agreed.touch(mode=0o600)


@asynccontextmanager
async def open_here(
    api: ServerApi, choice: HereChoice, *, hidden: Sequence[Path] = ()
) -> AsyncGenerator[HerePlace]:
    """A runner for the directory, connected while the block runs, and the running workspace. At the
    end the workspace is stopped, unless a chat still works in it. Raises HereFailed, UsageProblem,
    SettingsError."""
    data_dir = runner_data_dir(choice, api.server.url, os.environ, os.geteuid())
    if not choice.sandbox:
        agree_to_no_sandbox(choice, data_dir)
    api = patient(api)
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        runner_id = sealed_secrets.load_or_create(data_dir / ID_FILE, lambda: secrets.token_hex(16))
    except OSError as error:
        raise HereFailed(f"{data_dir} cannot be used: {error.strerror}.") from None
    with (data_dir / USERS_FILE).open("ab") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        async with _runner_process(api, choice, data_dir, hidden) as process:
            await _wait_connected(api, runner_id, process, data_dir / RUNNER_LOG)
            found = await _find_workspace(api, runner_id, choice)
            found = await _start_workspace(api, found, choice)
            place = HerePlace(workspace_id=found.id, name=found.name, directory=choice.directory)
            if found.network != choice.network:
                print_notice(
                    f"Another command works in this directory with --network {found.network}: that"
                    " counts until it ends."
                )
            try:
                yield place
            finally:
                await _leave(api, place, users)


@asynccontextmanager
async def _runner_process(
    api: ServerApi, choice: HereChoice, data_dir: Path, hidden: Sequence[Path]
) -> AsyncGenerator[asyncio.subprocess.Process]:
    """It ends with its input, also if this process is killed."""
    words = ["--server", api.server.url, "--directory", str(choice.directory)]
    words += ["--data-dir", str(data_dir)]
    words += [word for path in (data_dir.parent, *hidden) for word in ("--hide", str(path))]
    words += ["--network"] if choice.network == "full" else []
    words += [] if choice.sandbox else ["--no-sandbox"]
    with (data_dir / RUNNER_LOG).open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *CHATD,
            "runner",
            "here",
            *words,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            cwd="/",
            # Ctrl-C is for this command.
            start_new_session=True,
        )
    assert process.stdin is not None
    try:
        process.stdin.write(f"{api.server.token}\n".encode())
        with suppress(ConnectionError):
            await process.stdin.drain()
        yield process
    finally:
        process.stdin.close()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            process.kill()


async def _wait_connected(
    api: ServerApi, runner_id: str, process: asyncio.subprocess.Process, log: Path
) -> None:
    """Until the server knows it as connected. If another command works in this directory, that is
    the runner of the other command; this one's takes over at its end."""
    try:
        async with asyncio.timeout(RUNNER_START_TIMEOUT_S):
            while True:
                if process.returncode is not None:
                    raise HereFailed(f"The runner of this directory ended: {_last_line(log)}")
                try:
                    if (await api.get_runner(runner_id)).connected:
                        return
                except ApiError as error:
                    if error.status != 404:
                        raise
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise HereFailed(
            f"The runner of this directory does not connect: {_last_line(log)}\n  Its log is {log}."
        ) from None


# The workspace


async def _find_workspace(api: ServerApi, runner_id: str, choice: HereChoice) -> Workspace:
    for known in (await api.get_runner(runner_id)).workspaces:
        return await api.get_workspace(known.id)
    parameters = {DIRECTORY_PARAMETER: str(choice.directory)}
    return await api.create_workspace(
        name=workspace_name(choice.directory, runner_id),
        runner_id=runner_id,
        parameters=parameters,
    )


def workspace_name(directory: Path, runner_id: str) -> str:
    """The directory's name as far as a workspace's name can have it."""
    words = re.findall("[a-zA-Z0-9]+", directory.name)
    return f"{'-'.join(words)[:24].strip('-') or 'here'}-{runner_id[:4]}"


async def _start_workspace(api: ServerApi, found: Workspace, choice: HereChoice) -> Workspace:
    """The workspace once it runs. One that ran before, with another network, or whose agent does
    not answer because the machine was restarted, is started anew, once. Raises HereFailed."""
    loop = asyncio.get_running_loop()
    may_restart, may_start = True, found.latest_build is None or not found.latest_build.is_active
    is_new = not may_start
    patience_until = loop.time() + AGENT_PATIENCE_S
    try:
        async with asyncio.timeout(BUILD_TIMEOUT_S):
            while True:
                found = await _wait_for_build(api, found)
                build = found.latest_build or WorkspaceBuild()
                is_built = (build.transition, build.status) == ("start", "succeeded")
                fits = found.network == choice.network
                answers = is_new or any(agent.status == "connected" for agent in found.agents)
                if not is_built and not may_start and build.transition == "start":
                    raise HereFailed(f"The workspace does not start: {build.error or build.status}")
                if not is_built:
                    may_start, is_new = False, True
                    await _request_build(api, found.id, "start")
                elif answers and (fits or not may_restart or await is_busy(api, found.id)):
                    return found
                elif may_restart and (answers or loop.time() > patience_until):
                    may_restart, may_start = False, True
                    await _request_build(api, found.id, "stop")
                else:
                    await asyncio.sleep(POLL_S)
                found = await api.get_workspace(found.id)
    except TimeoutError:
        raise HereFailed("The workspace does not start in time.") from None


async def _wait_for_build(api: ServerApi, found: Workspace) -> Workspace:
    while found.latest_build is not None and found.latest_build.is_active:
        await asyncio.sleep(POLL_S)
        found = await api.get_workspace(found.id)
    return found


async def _request_build(
    api: ServerApi, workspace_id: WorkspaceId, transition: Literal["start", "stop"]
) -> None:
    try:
        await api.create_build(workspace_id, transition)
    except ApiError as error:
        if error.code != "build_active":  # Another command asks for one, too: that is waited for.
            raise


async def is_busy(api: ServerApi, workspace_id: WorkspaceId) -> bool:
    """Whether a chat works in the workspace, or waits for an approval there."""
    for status in BUSY_STATUSES:
        found = await api.list_chats(status=status, limit=MAX_LISTED_CHATS)
        if any(chat.workspace_id == workspace_id for chat in found.items):
            return True
    return False


async def _leave(api: ServerApi, place: HerePlace, users: BinaryIO) -> None:
    """Stop the workspace unless it is used. Best effort: the next command finds one that still
    runs."""
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return  # Another command works here.
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            if await is_busy(api, place.workspace_id):
                print_notice(
                    "The chat goes on; its tools wait until you run chatd chat --here in"
                    f" {place.directory} again."
                )
                return
            await _request_build(api, place.workspace_id, "stop")
            await _wait_for_build(api, await api.get_workspace(place.workspace_id))
    except (ChatdError, TimeoutError):
        print_notice("The workspace could not be stopped; its processes go on.")


async def last_chat_here(api: ServerApi, place: HerePlace) -> ChatId:
    """The chat of this directory that changed last. Raises UsageProblem."""
    found = [
        chat
        for pinned in (False, True)
        for chat in (await api.list_chats(pinned=pinned, limit=MAX_LISTED_CHATS)).items
        if chat.workspace_id == place.workspace_id
    ]
    if not found:
        raise UsageProblem("no chat has worked in this directory: leave out -c to start one")
    return max(found, key=lambda chat: chat.updated_at).id


async def check_chat_here(api: ServerApi, place: HerePlace, chat_id: ChatId) -> ChatId:
    """Raises UsageProblem if the chat works elsewhere."""
    if (await api.get_chat(chat_id)).workspace_id != place.workspace_id:
        raise UsageProblem("this chat does not work in this directory: leave out --here")
    return chat_id

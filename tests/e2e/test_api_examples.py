"""The examples in docs/api.md, run as they stand against a server."""

import asyncio
import re
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from chatd.app import process
from chatd.app.composition import LifecycleCallbacks, ReadyInfo
from chatd.clock import SystemClock
from tests.e2e.test_serve import TOKEN, client_of, create_chat, plain_settings
from tools.docs import API

# Real processes, on a machine that may be busy.
pytestmark = pytest.mark.timeout(150)

ADDRESS = "http://127.0.0.1:7870"
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
CURL = f"""#!/bin/sh
# Fails for an error reply, and ends a stream.
PATH={SYSTEM_PATH} exec curl --fail-with-body --max-time "${{STREAM_S:-20}}" "$@"
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", API.read_text(), re.MULTILINE | re.DOTALL)


@asynccontextmanager
async def serving(dsn: str, place: Path) -> AsyncGenerator[str]:
    stop = asyncio.Event()
    ready: asyncio.Future[ReadyInfo] = asyncio.get_running_loop().create_future()
    callbacks = LifecycleCallbacks(ready=ready.set_result)
    env = {"CHATD_ADMIN_TOKEN": TOKEN}
    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        group.create_task(
            process.serve(
                plain_settings(dsn, place), env, clock=SystemClock(), stop=stop, callbacks=callbacks
            )
        )
        yield (await ready).url or ""
        stop.set()


async def run(*command: str, env: dict[str, str]) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(*command, env=env, stdout=PIPE, stderr=STDOUT)
    try:
        out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode, out.decode()


async def test_the_shell_examples_work_in_their_order(dsn: str, tmp_path: Path) -> None:
    token = tmp_path / ".local" / "share" / "chatd" / "admin-token"
    token.parent.mkdir(parents=True)
    token.write_text(TOKEN)
    curl = tmp_path / "bin" / "curl"
    curl.parent.mkdir()
    curl.write_text(CURL)
    curl.chmod(0o755)
    async with serving(dsn, tmp_path) as url:
        async with client_of(url, TOKEN) as client:
            for words in ("one", "two"):
                await create_chat(client, words)
        script = "\n".join(blocks("sh")).replace(ADDRESS, url)
        script = re.sub(r"^(curl -sN .*)$", r"STREAM_S=2 \1 || test $? = 28", script, flags=re.M)
        env = {"HOME": str(tmp_path), "PATH": f"{curl.parent}:{SYSTEM_PATH}"}
        code, said = await run("bash", "-euo", "pipefail", "-c", script, env=env)
    assert code == 0, said
    assert "event: version" in said


async def test_the_python_client_works(dsn: str, tmp_path: Path) -> None:
    (program,) = blocks("python")
    async with serving(dsn, tmp_path) as url:
        env = {"CHATD": f"{url}/api/v1", "TOKEN": TOKEN, "PATH": SYSTEM_PATH}
        code, said = await run(sys.executable, "-c", program, env=env)
    assert code == 0, said
    assert said.endswith("1 chats\n"), said

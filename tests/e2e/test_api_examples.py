"""The examples of the pages about the API, run as they stand against a server."""

import asyncio
import re
import shutil
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
from tools.docs import API, ROOT

# Real processes, on a machine that may be busy.
pytestmark = pytest.mark.timeout(150)

WEBHOOKS, CLIENTS = API.with_name("webhooks.md"), API.with_name("clients.md")
ADDRESS = "http://127.0.0.1:7870"
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
TYPESCRIPT = ROOT / "ui" / "node_modules" / "typescript"
# Checks the syntax, and removes the types.
TRANSPILE = """
const [, place, file] = process.argv, ts = require(place), fs = require("fs");
const options = { module: ts.ModuleKind.ESNext, target: ts.ScriptTarget.ES2022 };
const done = ts.transpileModule(fs.readFileSync(file, "utf8"),
  { compilerOptions: options, reportDiagnostics: true });
if (done.diagnostics.length) throw new Error(JSON.stringify(done.diagnostics[0].messageText));
fs.writeFileSync(file.replace(/ts$/, "mjs"), done.outputText);
"""
CURL = f"""#!/bin/sh
# Fails for an error reply, and ends a stream.
PATH={SYSTEM_PATH} exec curl --fail-with-body --max-time "${{STREAM_S:-20}}" "$@"
"""


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


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
        script = "\n".join((*blocks(API, "sh"), *blocks(WEBHOOKS, "sh"))).replace(ADDRESS, url)
        script = re.sub(r"^(curl -sN .*)$", r"STREAM_S=2 \1 || test $? = 28", script, flags=re.M)
        env = {"HOME": str(tmp_path), "PATH": f"{curl.parent}:{SYSTEM_PATH}"}
        code, said = await run("bash", "-euo", "pipefail", "-c", script, env=env)
    assert code == 0, said
    assert "event: version" in said


async def test_the_clients_work(dsn: str, tmp_path: Path) -> None:
    """In Python and, where the page's packages are installed, in TypeScript."""
    (python,), (typescript,) = blocks(CLIENTS, "python"), blocks(CLIENTS, "typescript")
    assert max(python.count("\n"), typescript.count("\n")) <= 40
    commands: list[tuple[str, ...]] = [(sys.executable, "-c", python, "ping")]
    if TYPESCRIPT.is_dir() and shutil.which("node"):
        script = tmp_path / "client.ts"
        script.write_text(typescript)
        env = {"PATH": SYSTEM_PATH}
        code, made = await run("node", "-e", TRANSPILE, str(TYPESCRIPT), str(script), env=env)
        assert code == 0, made
        commands.append(("node", str(script.with_suffix(".mjs")), "ping"))
    async with serving(dsn, tmp_path) as url:
        env = {"CHATD": f"{url}/api/v1", "TOKEN": TOKEN, "PATH": SYSTEM_PATH}
        for command in commands:
            code, said = await run(*command, env=env)
            assert code == 0, said
            assert "ping" in said, said

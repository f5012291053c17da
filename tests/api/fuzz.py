"""`make fuzz`: run schemathesis against every endpoint, with valid and invalid requests
from its OpenAPI document.

schemathesis runs in its own process, so that its plugins do not affect pytest. Streams are
excluded: they do not end.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from chatd.clock import SystemClock
from chatd.domain.chat.states import State
from tests.api.workspace_api import HERE, WorkspaceApi, first_build, workspace_api
from tests.support.api.server import ADMINISTRATOR, FAST, ME
from tests.support.build_rig import FakeBackend, building
from tests.support.database import TestServer
from tests.support.seeds import Seed
from tests.support.store import chat_id, insert_seed
from tests.support.workspaces import TEMPLATE

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_headers_conformance,response_schema_conformance,unsupported_method"
)
AUTHENTICATION = "ignored_auth"
"""Sends each request again without a token and with a wrong one, a quarter of all work. The table
of permissions, which has every operation, asks with both too."""
STATES = (State.W, State.R1, State.A0, State.E1, State.XW0)


class Effort(Struct, frozen=True, kw_only=True):
    cases: int
    phases: str = "coverage,fuzzing"
    seed: int = 1
    token: str = ME
    arguments: tuple[str, ...] = ()
    checks: str = CHECKS


ADMINISTRATION = Effort(
    cases=1,
    phases="fuzzing",
    seed=5,
    token=ADMINISTRATOR,
    arguments=tuple(
        word for tag in ("users", "groups", "settings", "audit") for word in ("--include-tag", tag)
    ),
)
"""What only an administrator may ask."""


@asynccontextmanager
async def busy_workspace_api(dsn: str) -> AsyncGenerator[WorkspaceApi]:
    """Chats in several states, and a build worker that runs requested builds."""
    async with workspace_api(dsn) as api:
        for number, state in enumerate(STATES, 1):
            await insert_seed(api.pool, Seed(state=state, chat_id=chat_id(number)))
        async with building(api.pool, SystemClock(), FakeBackend(), hosts=(HERE,)):
            yield api


async def known_ids(api: WorkspaceApi) -> dict[str, list[object]]:
    """Existing ids by path parameter."""
    made = [await api.make() for _ in range(3)]
    builds = [first_build(one)["id"] for one in made]
    file = await api.server.ask("POST", "/files", b"text", headers={"content-type": "text/plain"})
    return {
        "chat_id": [str(chat_id(number)) for number in range(1, len(STATES) + 1)],
        "workspace_id": [one["id"] for one in made],
        "build_id": builds,
        "file_id": [file.json["id"]],
        "template_id": [str(TEMPLATE)],
        "model_id": [str(FAST.id)],
        "message_id": [1, 2, 3],
        "queue_id": [1, 2, 3],
    }


def settings(known: dict[str, list[object]]) -> str:
    """schemathesis configuration that uses an existing id with a probability of 0.7."""
    values = "".join(
        f"[dictionaries.{name}]\nvalues = {msgspec.json.encode(ids).decode()}\n"
        for name, ids in known.items()
    )
    bound = "".join(
        f'"path.{name}" = {{ dictionary = "{name}", probability = 0.7 }}\n' for name in known
    )
    return f"{values}[parameters]\n{bound}"


async def ask_everything(
    api: WorkspaceApi, effort: Effort, where: Path, *, aloud: bool = False
) -> tuple[int, str]:
    """The exit code and, unless `aloud`, the output."""
    (where / "schemathesis.toml").write_text(settings(await known_ids(api)))
    at = f"http://127.0.0.1:{api.server.port}"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "schemathesis.cli", "run", f"{at}/api/v1/openapi.json"),
        *("--url", at, "--header", f"Authorization: Bearer {effort.token}"),
        *("--checks", effort.checks, "--phases", effort.phases, "--exclude-tag", "events"),
        *("--max-examples", str(effort.cases), "--seed", str(effort.seed)),
        *("--request-timeout", "30", "--no-color", "--suppress-health-check", "all"),
        *effort.arguments,
        cwd=where,
        stdout=None if aloud else asyncio.subprocess.PIPE,
        stderr=None if aloud else asyncio.subprocess.STDOUT,
    )
    try:
        said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, (said or b"").decode()


async def fuzz(dsn: str, effort: Effort) -> int:
    with tempfile.TemporaryDirectory() as place:
        async with busy_workspace_api(dsn) as api:
            code, _ = await ask_everything(api, effort, Path(place), aloud=True)
            administration = msgspec.structs.replace(
                ADMINISTRATION,
                cases=effort.cases,
                phases=effort.phases,
                seed=effort.seed,
                checks=effort.checks,
            )
            more, _ = await ask_everything(api, administration, Path(place), aloud=True)
            return code or more


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2000, help="for each endpoint")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--phases", default="coverage,fuzzing,stateful")
    options, more = parser.parse_known_args()
    effort = Effort(
        cases=options.cases,
        seed=options.seed,
        phases=options.phases,
        arguments=tuple(more),
        checks=f"{CHECKS},{AUTHENTICATION}",
    )
    server = TestServer()
    try:
        return asyncio.run(fuzz(server.clone().dsn, effort))
    finally:
        server.close()


if __name__ == "__main__":
    sys.exit(main())

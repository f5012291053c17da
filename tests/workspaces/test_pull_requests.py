"""The pull request of a chat's branch, asked for at a git host with the owner's token."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final
from uuid import UUID

import pytest
from aiohttp import web
from msgspec.structs import replace

from chatd.domain.chat.row import DiffStatus
from chatd.git_hosts.host_apis import HostApis
from chatd.sealed_secrets import KeyRing, new_key
from chatd.store.account import git_credentials
from chatd.store.account.git_credentials import TOKEN, NewGitCredential
from chatd.store.database.pool import Pool
from chatd.workspaces.diff_status import PULL_REQUEST_FRESH_S, PullRequests, can_change_elsewhere
from tests.support.clock import FakeClock
from tests.support.factories import chat, member
from tests.support.outcomes import present
from tests.support.stream_replica import env_with

SHA: Final = "b" * 40
STATUS: Final = DiffStatus(
    branch="fix", base="origin/main", additions=1, deletions=0, changed_files=1, ahead=0, behind=0
)


class FakeHost:
    """Speaks Gitea's API, and refuses other tokens."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.checks = "pending"
        self.fails = False
        self.port = 0

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        if self.fails:
            return web.Response(status=502)
        if request.headers.get("authorization") != "token let-me-in":
            return web.Response(status=401)
        if request.path == "/api/v1/repos/team/app/pulls":
            page = f"http://127.0.0.1:{self.port}/team/app/pulls/3"
            head = {"ref": "fix", "sha": SHA}
            return web.json_response(
                [{"number": 3, "html_url": page, "title": "Fix", "state": "open", "head": head}]
            )
        assert request.path == f"/api/v1/repos/team/app/commits/{SHA}/status"
        return web.json_response({"state": self.checks, "total_count": 1})


@asynccontextmanager
async def git_host() -> AsyncGenerator[FakeHost]:
    host = FakeHost()
    app = web.Application()
    app.router.add_route("GET", "/{path:.*}", host.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host.port = runner.addresses[0][1]
        yield host
    finally:
        await runner.cleanup()


async def give_token(pool: Pool, ring: KeyRing, host: FakeHost, token: str = "let-me-in") -> None:
    for key_id in ring.key_ids:
        await pool.execute(
            "INSERT INTO secret_keys (id, check_value, state) VALUES ($1, '', 'current')"
            " ON CONFLICT DO NOTHING",
            key_id,
        )
    row_id = UUID(int=77)
    async with pool.transaction() as session:
        await git_credentials.save(
            session,
            member(),
            NewGitCredential(
                id=row_id,
                host=f"127.0.0.1:{host.port}",
                kind="gitea",
                api_url=f"http://127.0.0.1:{host.port}/api/v1",
                sealed_token=ring.seal(token, TOKEN.context(row_id)),
            ),
        )


def new_ring() -> KeyRing:
    key = new_key()
    return KeyRing([key], key.id)


def pull_requests(
    pool: Pool, ring: KeyRing, clock: FakeClock, private_hosts: frozenset[str] = frozenset()
) -> PullRequests:
    env = env_with(clock)
    return PullRequests(pool, ring, env, HostApis(ring, env, allow_private=False), private_hosts)


async def test_a_pull_request_is_found_with_its_checks_and_asked_for_again(pool: Pool) -> None:
    clock, ring = FakeClock(), new_ring()
    async with git_host() as host:
        await give_token(pool, ring, host)
        status = replace(STATUS, remote_url=f"http://127.0.0.1:{host.port}/team/app.git")
        reader = pull_requests(pool, ring, clock, frozenset({"127.0.0.1"}))
        found = await reader.complete(chat(), status)
        assert present(found.pull_request).number == 3
        assert present(found.pull_request).checks == "pending"
        assert found.new_pull_request_url is None
        assert can_change_elsewhere(found)
        host.checks = "success"
        assert await reader.complete(chat(), status) == found, "still fresh"
        clock.advance(PULL_REQUEST_FRESH_S)
        later = await reader.complete(chat(), status)
        assert present(later.pull_request).checks == "passing"
        # A host that fails changes nothing of what is known.
        host.fails = True
        clock.advance(PULL_REQUEST_FRESH_S)
        assert await reader.complete(chat(diff_status=later), status) == later
        # It is left alone for a while: a slow host must not hold up the chats of others.
        asked = len(host.asked)
        assert await reader.complete(chat(diff_status=later), status) == later
        assert len(host.asked) == asked


async def test_without_a_token_no_host_is_asked(pool: Pool) -> None:
    reader = pull_requests(pool, new_ring(), FakeClock())
    known = replace(STATUS, remote_url="git@github.com:team/app.git")
    found = await reader.complete(chat(), known)
    assert found.pull_request is None
    assert found.new_pull_request_url == ("https://github.com/team/app/compare/main...fix?expand=1")
    unknown = replace(STATUS, remote_url="git@git.test:team/app.git")
    assert await reader.complete(chat(), unknown) == unknown
    assert await reader.complete(chat(), STATUS) == STATUS


@pytest.mark.promise("P13")
async def test_a_token_is_not_sent_into_a_private_network_unless_the_operator_allows_it(
    pool: Pool,
) -> None:
    ring = new_ring()
    async with git_host() as host:
        await give_token(pool, ring, host)
        status = replace(STATUS, remote_url=f"http://127.0.0.1:{host.port}/team/app.git")
        found = await pull_requests(pool, ring, FakeClock()).complete(chat(), status)
        assert found.pull_request is None
        assert host.asked == []

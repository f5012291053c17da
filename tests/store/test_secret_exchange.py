"""A host that has none of the deployment's secrets gets them from a running server."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Final
from uuid import UUID

import pytest
from msgspec.structs import replace

from chatd.domain.access.permissions import SystemActor
from chatd.domain.ports import Env
from chatd.sealed_secrets import SecretUnreadable, new_key
from chatd.services.operation.key_rotation import KeyRotation
from chatd.services.operation.secret_exchange import (
    POLL_INTERVAL_S,
    REPLY_WAIT_S,
    SharedSecrets,
    new_private_key,
    public_bytes,
    seal,
    unseal,
)
from chatd.services.operation.secret_keys import (
    KEY_FILE,
    WORKSPACE_SECRET,
    OtherWorkspaceSecret,
    SecretKeys,
    WorkspaceSecret,
    key_source,
)
from chatd.store.account import audit
from chatd.store.account.audit import AuditFilter
from chatd.store.database import sealed_columns
from chatd.store.database.pool import Pool
from chatd.store.database.sealed_columns import SecretReply, SecretRequest
from chatd.workspaces.agents.agent_session import SECRET_FILE
from tests.support.clock import FakeClock
from tests.support.eventually import eventually
from tests.support.outcomes import present

SECRETS: Final = SharedSecrets(keys=("a key",), workspaces="a secret of workspaces")
NUMBERS: Final = count(1)


def new_id() -> UUID:
    return UUID(int=next(NUMBERS))


class Deployment:
    """Hosts with data directories of their own on one database."""

    def __init__(self, pool: Pool, clock: FakeClock, place: Path) -> None:
        self.pool = pool
        self.clock = clock
        self.place = place
        self.events: list[tuple[str, dict[str, object]]] = []
        self.env = Env(
            clock=clock,
            emit=lambda event, **fields: self.events.append((event, fields)),
            new_id=new_id,
            new_change_id=lambda: pytest.fail("none"),
        )

    def host(
        self,
        name: str,
        *,
        joins: bool = True,
        has_workspaces: bool = True,
        given: str | None = None,
        keys: str = "",
    ) -> SecretKeys:
        directory = self.place / name
        directory.mkdir(exist_ok=True)
        return SecretKeys(
            key_source(directory, {"CHATD_SECRET_KEYS": keys}),
            self.env,
            f"host {name}",
            workspaces=WorkspaceSecret(data_dir=directory, given=given) if has_workspaces else None,
            host_id=f"id of {name}",
            joins=joins,
        )

    async def started(self, name: str) -> SecretKeys:
        keys = self.host(name)
        await keys.start(self.pool)
        return keys

    @asynccontextmanager
    async def asking(
        self, *works: Coroutine[object, object, object], replies: int = 1
    ) -> AsyncGenerator[None]:
        """They run, and ask, while the block does; then they find the replies."""
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work)
            await eventually(self._are_asking(replies))
            yield
            await self.clock.advance_past("secret_reply")

    def _are_asking(self, number: int) -> Callable[[], Awaitable[bool]]:
        async def look() -> bool:
            return len(self.clock.sleeping("secret_reply")) == number

        return look

    async def join(self, joiner: SecretKeys, *answering: SecretKeys) -> None:
        async with self.asking(joiner.start(self.pool)):
            for one in answering:
                await one.refresh(self.pool)

    async def refused(self, joiner: SecretKeys) -> str:
        with pytest.raises(OtherWorkspaceSecret) as refused:
            await joiner.start(self.pool)
        return refused.value.message

    def files(self, name: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for file in (SECRET_FILE, KEY_FILE):
            path = self.place / name / file
            if path.exists():
                assert path.stat().st_mode & 0o777 == 0o600
                found[file] = path.read_text()
        return found

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.events]

    async def requests(self) -> int:
        number: int = await self.pool.fetchval("SELECT count(*) FROM secret_requests")
        return number


@pytest.fixture
def deployment(pool: Pool, clock: FakeClock, tmp_path: Path) -> Deployment:
    return Deployment(pool, clock, tmp_path)


# The sealed reply


def request(public_key: bytes) -> SecretRequest:
    return SecretRequest(
        id=UUID(int=1),
        host_id="b",
        name="host b",
        key_id="k1",
        with_workspaces=True,
        public_key=public_key,
    )


def test_only_the_process_that_asked_opens_a_reply() -> None:
    private = new_private_key()
    asked = request(public_bytes(private))
    reply = seal(SECRETS, asked, "host a")
    assert unseal(reply, asked, private) == SECRETS
    assert b"a key" not in reply.reply
    assert "a key" not in repr(SECRETS)
    with pytest.raises(SecretUnreadable):
        unseal(reply, asked, new_private_key())


@pytest.mark.parametrize(
    "change",
    [
        {"id": UUID(int=2)},
        {"host_id": "c"},
        {"name": "host c"},
        {"key_id": "k2"},
        {"with_workspaces": False},
        {"public_key": public_bytes(new_private_key())},
    ],
)
def test_a_reply_is_bound_to_its_request(change: dict[str, object]) -> None:
    private = new_private_key()
    asked = request(public_bytes(private))
    reply = seal(SECRETS, asked, "host a")
    with pytest.raises(SecretUnreadable):
        unseal(reply, replace(asked, **change), private)
    with pytest.raises(SecretUnreadable):
        unseal(replace(reply, answered_by="host m"), asked, private)
    with pytest.raises(SecretUnreadable):
        unseal(replace(reply, reply=reply.reply[:-1] + b"!"), asked, private)
    with pytest.raises(SecretUnreadable):
        unseal(replace(reply, reply_key=asked.public_key), asked, private)


@pytest.mark.parametrize("public_key", [bytes(32), b"", b"short"])
def test_a_public_key_that_is_none_gets_nothing(public_key: bytes) -> None:
    with pytest.raises(SecretUnreadable):
        seal(SECRETS, request(public_key), "host a")


# Joining


async def test_a_host_without_secrets_gets_them_from_a_running_server(
    deployment: Deployment, pool: Pool
) -> None:
    first = await deployment.started("a")
    second = deployment.host("b")
    await deployment.join(second, first)
    assert deployment.files("b") == deployment.files("a")
    assert second.workspace_secret == first.workspace_secret
    assert second.ring.open(first.ring.seal("an API key", "here"), "here") == "an API key"
    assert await deployment.requests() == 0
    assert deployment.names == [
        *("secret_key_created", "secrets_asked", "secrets_sent", "secrets_received")
    ]
    said = repr(deployment.events)
    for text in deployment.files("a").values():
        assert text.strip() not in said
    actor = SystemActor(reason="test")
    logged = await audit.list_page(pool, actor, AuditFilter(), before=None, limit=10)
    assert [(one.action, one.object_id, one.object_name) for one in logged] == [
        ("server.receive_secrets", "id of b", "host b"),
        ("server.send_secrets", "id of b", "host b"),
    ]
    # The next start needs nobody.
    await deployment.host("b").start(pool)


async def test_a_copy_of_the_database_has_nothing_that_opens_a_reply(
    deployment: Deployment, pool: Pool
) -> None:
    first = await deployment.started("a")
    async with deployment.asking(deployment.host("b").start(pool)):
        await first.refresh(pool)
        row = await pool.fetchrow("SELECT * FROM secret_requests")
        assert row is not None
        assert row["answered_by"] == "host a"
        for text in deployment.files("a").values():
            assert text.strip().encode() not in row["reply"]


async def test_keys_that_the_database_does_not_know_are_not_sent(
    deployment: Deployment, pool: Pool
) -> None:
    """They may be those of another deployment."""
    first = await deployment.started("a")
    own = deployment.files("a")[KEY_FILE].strip()
    (deployment.place / "a" / KEY_FILE).write_text(f"{new_key().encode()}\n{own}\n")
    private = new_private_key()
    asked = replace(request(public_bytes(private)), key_id=present(first.ring.current))
    await sealed_columns.insert_request(pool, asked)
    await first.refresh(pool)
    reply = present(await sealed_columns.read_reply(pool, asked.id))
    assert unseal(reply, asked, private).keys == (own,)


async def test_two_hosts_join_at_once_and_each_is_answered_once(
    deployment: Deployment, pool: Pool
) -> None:
    first = await deployment.started("a")
    second = deployment.host("b")
    await deployment.join(second, first)
    deployment.events.clear()
    async with deployment.asking(*(deployment.host(name).start(pool) for name in "cd"), replies=2):
        await asyncio.gather(first.refresh(pool), second.refresh(pool))
    assert deployment.files("c") == deployment.files("d") == deployment.files("a")
    assert deployment.names.count("secrets_sent") == 2
    assert deployment.names.count("secrets_received") == 2


async def test_hosts_that_start_together_on_an_empty_database_share_the_secrets_of_the_first(
    deployment: Deployment, pool: Pool
) -> None:
    one, two = deployment.host("a"), deployment.host("b")
    async with deployment.asking(one.start(pool), two.start(pool)):
        (founder,) = [keys for keys in (one, two) if keys.workspace_secret is not None]
        await founder.refresh(pool)
    assert deployment.files("a") == deployment.files("b")
    assert one.workspace_secret == two.workspace_secret


async def test_a_host_that_is_killed_while_it_joins_joins_at_its_next_start(
    deployment: Deployment, pool: Pool, tmp_path: Path
) -> None:
    first = await deployment.started("a")
    async with asyncio.TaskGroup() as group:
        killed = group.create_task(deployment.host("b").start(pool))
        await deployment.clock.wait_for_sleeper("secret_reply")
        killed.cancel()
    assert deployment.files("b") == {}
    # Killed between the two files.
    (tmp_path / "b" / SECRET_FILE).write_text(deployment.files("a")[SECRET_FILE])
    (tmp_path / "b" / SECRET_FILE).chmod(0o600)
    await deployment.join(deployment.host("b"), first)
    assert deployment.files("b") == deployment.files("a")
    # Killed after them: what is left expires.
    await pool.execute("UPDATE secret_requests SET expires_at = now() - interval '1 s'")
    await first.refresh(pool)
    assert await deployment.requests() == 0


async def test_an_expired_request_is_not_answered(deployment: Deployment, pool: Pool) -> None:
    first = await deployment.started("a")
    async with deployment.asking(deployment.refused(deployment.host("b"))):
        await pool.execute("UPDATE secret_requests SET expires_at = now() - interval '1 s'")
        await first.refresh(pool)
        deployment.clock.advance(REPLY_WAIT_S - POLL_INTERVAL_S)
    assert "secrets_sent" not in deployment.names


async def test_without_an_answer_the_start_is_refused_and_names_the_files(
    deployment: Deployment, pool: Pool, tmp_path: Path
) -> None:
    await deployment.started("a")
    texts: list[str] = []

    async def start() -> None:
        texts.append(await deployment.refused(deployment.host("b")))

    async with deployment.asking(start()):
        deployment.clock.advance(REPLY_WAIT_S - POLL_INTERVAL_S)
    (text,) = texts
    assert "The server on host a" in text
    assert "is of an older version" in text
    assert f"scp -p <its host>:<its data directory>/secret* {tmp_path / 'b'}/" in text
    assert deployment.files("b") == {}, "the next start asks again"
    assert await deployment.requests() == 0
    assert [one.name for one in await sealed_columns.list_processes(pool, 60)] == ["host a"]


async def test_either_side_can_forbid_it(deployment: Deployment, pool: Pool) -> None:
    first = deployment.host("a", joins=False)
    await first.start(pool)
    with pytest.raises(OtherWorkspaceSecret, match=r"server\.join is off"):
        await deployment.host("b", joins=False).start(pool)
    async with deployment.asking(deployment.refused(deployment.host("c"))):
        await first.refresh(pool)
        deployment.clock.advance(REPLY_WAIT_S - POLL_INTERVAL_S)
    assert "secrets_sent" not in deployment.names


@pytest.mark.parametrize("trace", ["pg", "ws", "ws-supervisor", "admin-token"])
async def test_a_secret_that_may_be_in_use_is_not_replaced(
    deployment: Deployment, pool: Pool, tmp_path: Path, trace: str
) -> None:
    await deployment.started("a")
    own = tmp_path / "b" / SECRET_FILE
    (tmp_path / "b" / trace).mkdir(parents=True)
    own.write_text("0123456789abcdef" * 4)
    with pytest.raises(OtherWorkspaceSecret, match="may be in use"):
        await deployment.host("b").start(pool)
    assert own.read_text() == "0123456789abcdef" * 4


async def test_a_secret_beside_keys_of_the_environment_is_not_replaced(
    deployment: Deployment, pool: Pool, tmp_path: Path
) -> None:
    """A server that gets its keys so leaves no file of keys, and one without sandboxes no other."""
    await deployment.started("a")
    own = tmp_path / "b" / SECRET_FILE
    own.parent.mkdir()
    own.write_text("0123456789abcdef" * 4)
    with pytest.raises(OtherWorkspaceSecret, match="may be in use"):
        await deployment.host("b", keys=deployment.files("a")[KEY_FILE]).start(pool)
    assert own.read_text() == "0123456789abcdef" * 4


async def test_a_secret_of_the_environment_is_not_replaced(
    deployment: Deployment, pool: Pool
) -> None:
    await deployment.started("a")
    with pytest.raises(OtherWorkspaceSecret, match="may be in use"):
        await deployment.host("b", given="chosen by a person").start(pool)


async def test_a_secret_that_a_refused_start_left_is_replaced_and_kept_beside(
    deployment: Deployment, tmp_path: Path
) -> None:
    first = await deployment.started("a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / SECRET_FILE).write_text("0123456789abcdef" * 4)
    await deployment.join(deployment.host("b"), first)
    assert deployment.files("b") == deployment.files("a")
    left = tmp_path / "b" / f"{SECRET_FILE}.replaced"
    assert left.read_text().strip() == "0123456789abcdef" * 4


async def test_a_host_asks_only_for_what_it_lacks(deployment: Deployment) -> None:
    first = await deployment.started("a")
    secret, keys = (deployment.files("a")[name].strip() for name in (SECRET_FILE, KEY_FILE))
    await deployment.join(deployment.host("b", given=secret), first)
    assert deployment.files("b") == {KEY_FILE: f"{keys}\n"}
    await deployment.join(deployment.host("c", has_workspaces=False), first)
    assert deployment.files("c") == {KEY_FILE: f"{keys}\n"}
    await deployment.join(deployment.host("d", keys=keys), first)
    assert deployment.files("d") == {SECRET_FILE: f"{secret}\n"}


async def test_wrong_secrets_in_a_reply_are_not_stored(deployment: Deployment, pool: Pool) -> None:
    """A reply of a writer of the database that holds none of the secrets."""
    await deployment.started("a")
    own = deployment.files("a")[KEY_FILE].strip()
    for keys in (new_key().encode(), own):
        async with deployment.asking(deployment.refused(deployment.host("b"))):
            (asked,) = await sealed_columns.list_requests(pool)
            forged = SharedSecrets(keys=(keys,), workspaces="f" * 64)
            await sealed_columns.answer_request(pool, asked.id, seal(forged, asked, "host m"))
        assert deployment.files("b") == {}
        assert deployment.events[-1] == ("secrets_not_received", {"reason": "wrong secrets"})
    async with deployment.asking(deployment.refused(deployment.host("b"))):
        (asked,) = await sealed_columns.list_requests(pool)
        noise = SecretReply(answered_by="host m", reply_key=asked.public_key, reply=b"noise")
        await sealed_columns.answer_request(pool, asked.id, noise)
    assert deployment.files("b") == {}
    assert await deployment.requests() == 0


async def test_a_server_that_started_without_the_secrets_does_not_keep_out_one_that_has_them(
    deployment: Deployment, pool: Pool
) -> None:
    first = await deployment.started("a")
    await first.stop(pool)
    guest = await deployment.started("b")  # nobody runs who could answer
    assert deployment.names[-1] == "secret_key_missing"
    again = await deployment.started("a")
    assert again.workspace_secret == first.workspace_secret != guest.workspace_secret
    # With the key it would count as one that has the secrets, and keep that one out after all.
    await guest.refresh(pool)
    await again.refresh(pool)
    assert not guest.ring.key_ids
    await again.stop(pool)
    assert (await deployment.started("a")).workspace_secret == first.workspace_secret


async def test_a_server_that_started_without_the_key_gets_it_while_it_runs(
    deployment: Deployment, pool: Pool
) -> None:
    first = deployment.host("a", has_workspaces=False)
    await first.start(pool)
    await first.stop(pool)
    guest = await deployment.started("b")  # nobody runs who could answer
    assert deployment.names[-1] == "secret_key_missing"
    again = deployment.host("a", has_workspaces=False)
    await again.start(pool)
    async with deployment.asking(guest.refresh(pool)):
        await again.refresh(pool)
    assert guest.ring.open(again.ring.seal("an API key", "here"), "here") == "an API key"


async def test_a_rotated_key_reaches_the_other_hosts_by_itself(
    deployment: Deployment, pool: Pool, clock: FakeClock
) -> None:
    first = await deployment.started("a")
    second = deployment.host("b")
    await deployment.join(second, first)
    work = KeyRotation(pool, first.source, clock, list[str]().append, [])
    async with asyncio.TaskGroup() as group:
        rotating = group.create_task(work.rotate())
        await clock.wait_for_sleeper("key_holders")
        await first.refresh(pool)  # and has the key of the file from now on
        async with deployment.asking(second.refresh(pool)):
            await first.refresh(pool)
        await clock.advance_past("key_holders")
    await second.refresh(pool)
    assert second.ring.current == rotating.result().key_id
    assert set(deployment.files("b")[KEY_FILE].split()) == set(
        deployment.files("a")[KEY_FILE].split()
    )


async def test_a_server_that_is_too_old_to_tell_or_has_no_workspaces_is_let_in(
    deployment: Deployment, pool: Pool
) -> None:
    first = deployment.host("a", has_workspaces=False)
    await first.start(pool)
    (shown,) = await sealed_columns.list_processes(pool, 60)
    assert WORKSPACE_SECRET not in shown.settings
    second = deployment.host("b")
    await deployment.join(second, first)
    assert set(deployment.files("b")) == {SECRET_FILE, KEY_FILE}

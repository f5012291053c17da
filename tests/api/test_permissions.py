"""Every operation of the API, asked by every kind of caller: allowed requests succeed, refused ones
get 401, 403 or 404 as the table says and change nothing."""

from collections.abc import Sequence

import aiohttp
import msgspec
import pytest

from chatd.api.route import PREFIX, ApiRoute, MountedRoute
from tests.api.permissions.callers import UNKNOWN
from tests.api.permissions.table import CALLERS, PARTS, Row
from tests.api.permissions.world import World, world_on
from tests.support.api.server import ApiReply, ApiServer, Json, authorized

UNRECORDED = {
    # They change nothing that is stored.
    "POST /demo/worker",
    "POST /demo/kill-worker",
    "POST /mcp-server-configs/{mcp_server_id}/test",
    "POST /hooks/{hook_id}/test",
    "POST /repository-connections/{connection_id}/test",
    "POST /slack-connections/{slack_id}/test",
    "POST /providers/{provider_id}/test",
}


def is_right(row: Row, reply: ApiReply, expected: str) -> bool:
    code = str(reply.code[1]) if reply.status >= 400 else ""
    if expected == "ok":
        return reply.status < 400 or code in row.says.split()
    return str(reply.status) == expected and code not in row.says.split()


class Cells:
    """Asks for one row and collects what was answered wrongly."""

    def __init__(self, world: World, row: Row) -> None:
        self._world = world
        self._row = row
        self.wrong: list[str] = []

    async def check(self, caller: str, expected: str, objects: dict[str, str], what: str) -> bool:
        """Whether the request succeeded."""
        reply = await self._world.send(self._row, objects, caller)
        if not is_right(self._row, reply, expected):
            self.wrong.append(
                f"{self._row.endpoint}: {caller}, {what}: wanted {expected} {self._row.says},"
                f" got {reply.status} {reply.content[:160]!r}"
            )
        return reply.status < 400

    async def refusals(self) -> None:
        """On an object of the owner, which stays as it is."""
        row, objects = self._row, await self._world.objects.make(self._row, "owner")
        before = await self._world.last_writes()
        if row.rule != "public":
            for caller in UNKNOWN:
                await self.check(caller, "401", objects, "any")
        for caller in CALLERS:
            if (expected := row.outcomes[caller]) != "ok":
                await self.check(caller, expected, objects, "of the owner")
        if row.scope is not None:
            await self.check(f"{row.allowed} without {row.scope}", "403", objects, "of the owner")
        after = await self._world.last_writes()
        if after != before:
            changed = [name for name in after if after[name] != before[name]]
            self.wrong.append(f"{row.endpoint}: a refused request wrote {changed}")

    async def successes(self) -> None:
        """Each on an object of its own."""
        row, make = self._row, self._world.objects.make
        for caller in CALLERS:
            if row.outcomes[caller] == "ok":
                objects = await make(row, "owner")
                before = await self._world.recorded_actions()
                is_done = await self.check(caller, "ok", objects, "of the owner")
                recorded = (await self._world.recorded_actions())[len(before) :]
                self._check_audit(caller, recorded, is_done=is_done)
        if row.scope is not None:
            caller = f"{row.allowed} with {row.scope}"
            await self.check(caller, "ok", await make(row, "owner"), "of the owner")
        if row.rule == "public":
            for caller in UNKNOWN:
                await self.check(caller, "ok", await make(row, "owner"), "any")
        for caller in row.other_owners:
            await self.check(caller, "ok", await make(row, caller), "own")

    def _check_audit(self, caller: str, recorded: list[str], *, is_done: bool) -> None:
        row = self._row
        reads = [action for action in recorded if action.endswith(".read")]
        writes = [action for action in recorded if action not in reads]
        if len(reads) != int(row.is_audited and caller in ("viewer", "admin")):
            self.wrong.append(f"{row.endpoint}: {caller}: reads recorded: {reads}")
        if is_done and writes != row.records.split():
            self.wrong.append(f"{row.endpoint}: {caller}: recorded {writes}, not {row.records!r}")

    async def deleted(self) -> None:
        row, objects = self._row, await self._world.objects.make(self._row, "owner")
        if not await self._world.objects.delete(row, objects):
            return
        before = await self._world.last_writes()
        for caller in CALLERS:
            expected = row.outcomes[caller]
            if not (expected == "403" and is_by_role(row, caller)) and not (
                expected == "ok" and row.works_deleted
            ):
                expected = "404"
            await self.check(caller, expected, objects, "deleted")
        if row.works_deleted:
            return
        if await self._world.last_writes() != before:
            self.wrong.append(f"{row.endpoint}: a request for a deleted object wrote something")


def is_by_role(row: Row, caller: str) -> bool:
    """Refused before the object is looked for."""
    return caller == "viewer" or row.rule.startswith("administration")


async def ask_all(world: World, rows: Sequence[Row]) -> list[str]:
    wrong: list[str] = []
    for row in rows:
        cells = Cells(world, row)
        await cells.refusals()
        await cells.successes()
        await cells.deleted()
        wrong += cells.wrong
    return wrong


@pytest.mark.promise("P12")
@pytest.mark.parametrize("part", PARTS)
async def test_every_caller_gets_what_the_table_says(dsn: str, part: str) -> None:
    async with world_on(dsn) as world:
        wrong = await ask_all(world, PARTS[part])
    assert not wrong, "\n".join(wrong)


async def test_every_route_has_a_row(server: ApiServer) -> None:
    routes = set[tuple[str, bool]]()
    for path in server.api.table:
        template = path.template.removeprefix(PREFIX)
        if path.stream is not None:
            routes.add((f"GET {template}", True))
        for method, handler in path.handlers.items():
            if isinstance(handler, ApiRoute):
                routes.add((f"{method} {template}", False))
    rows = {(row.endpoint, row.is_stream) for part in PARTS.values() for row in part}
    assert routes - rows == set(), "add a row to tests/api/permissions/table.py"
    assert rows - routes == set(), "these routes do not exist"


def test_every_administrative_write_is_recorded() -> None:
    writes = [
        row for rows in PARTS.values() for row in rows if row.method != "GET" and not row.is_stream
    ]
    silent = {row.endpoint for row in writes if row.rule == "administration" and not row.records}
    assert silent == UNRECORDED
    sealed = ("keys", "credentials", "tokens", "sessions")
    secret = [row for row in writes if any(word in row.path for word in sealed)]
    assert [row.endpoint for row in secret if not row.records] == []
    assert len(secret) >= 12


async def test_everybody_may_open_the_pages(server: ApiServer) -> None:
    """A page is made without the request, so that it holds nothing of any user."""
    pages = [
        path.template
        for path in server.api.table
        if any(not isinstance(one, ApiRoute | MountedRoute) for one in path.handlers.values())
    ]
    assert {"/healthz", "/sign-in", "/docs", f"{PREFIX}/openapi.json"} <= set(pages)
    for page in pages:
        assert (await server.open_page(page)).status == 200, page


async def first_words(world: World, caller: str, *topics: str) -> list[str]:
    """What the socket says first to a subscription to each topic, or the status of its refusal."""
    path, headers = "/api/v1/ws", authorized(world.callers.tokens[caller])
    try:
        async with world.server.http.ws_connect(path, headers=headers) as socket:
            said: list[str] = []
            for topic in topics:
                await socket.send_json({"type": "subscribe", "topic": topic})
                while (event := await next_event(socket))["type"] not in ("subscribed", "refused"):
                    pass
                assert event["topic"] == topic
                said.append(str(event.get("code", "ok")))
            return said
    except aiohttp.WSServerHandshakeError as error:
        return [str(error.status)] * len(topics)


async def next_event(socket: aiohttp.ClientWebSocketResponse) -> Json:
    return msgspec.json.decode(await socket.receive_str(timeout=30), type=list[Json])[0]


@pytest.mark.promise("P12")
async def test_a_socket_follows_what_its_caller_may_read(dsn: str) -> None:
    row = next(row for row in PARTS["chats"] if row.endpoint == "GET /chats/{chat_id}")
    async with world_on(dsn) as world:
        chat = (await world.objects.make(row, "owner"))["chat_id"]
        gone = await world.objects.make(row, "owner")
        await world.objects.delete(row, gone)
        topics = ("chats", f"chat:{chat}", f"chat:{gone['chat_id']}")
        for caller in CALLERS:
            expected = "ok" if row.outcomes[caller] == "ok" else "not_found"
            assert await first_words(world, caller, *topics) == ["ok", expected, "not_found"], (
                caller
            )
        for caller in UNKNOWN:
            assert await first_words(world, caller, *topics) == ["401"] * 3, caller
        assert await first_words(world, "owner without chat:read", "chats") == ["403"]
        assert await first_words(world, "owner with chat:read", *topics[:2]) == ["ok", "ok"]
        reads = [one for one in await world.recorded_actions() if one.endswith(".read")]
        assert len(reads) == 2, "by the viewer and the administrator"

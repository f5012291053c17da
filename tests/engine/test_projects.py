"""What the model of a project's chat is told of the project, and when."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from hashlib import sha256
from uuid import UUID

from chatd.app.replica import Replica
from chatd.clock import SystemClock
from chatd.domain.access.permissions import UserActor
from chatd.domain.chat.row import Chat
from chatd.domain.files import FileLimits, NewFile
from chatd.domain.ids import FileId, ProjectId
from chatd.domain.ports import ToolSource
from chatd.domain.prompt.instructions import Instructions
from chatd.store import file_stores, projects
from chatd.store.file_stores import DatabaseFileStore, FileStores
from chatd.store.projects import ProjectPatch
from chatd.tools.chat_files import ChatFileWriter
from chatd.tools.chat_tools import ChatTools
from chatd.tools.files import SavedResultTools
from chatd.tools.projects import ProjectDirectory
from tests.support.engine_rig import EngineRig, engine_rig
from tests.support.eventually import eventually
from tests.support.stream_replica import env_with


async def no_instructions(_chat: Chat) -> Instructions:
    return Instructions()


@asynccontextmanager
async def project_rig(dsn: str) -> AsyncGenerator[tuple[EngineRig, ProjectDirectory]]:
    built: list[ProjectDirectory] = []

    def build_tools(replica: Replica) -> ToolSource:
        pool, env = replica.database.pool, env_with(SystemClock())
        stores = FileStores(current=DatabaseFileStore(pool))
        built.append(ProjectDirectory(pool, stores, replica.config_changes, env))
        writer = ChatFileWriter(pool, stores, FileLimits(), env)
        families = [SavedResultTools(None, writer)]
        return ChatTools(families, no_instructions, projects=built[0])

    async with engine_rig(dsn, build_tools=build_tools) as rig:
        yield rig, built[0]


def owner_of(rig: EngineRig) -> UserActor:
    return UserActor(user_id=rig.owner, role="member")


async def create_project(rig: EngineRig, instructions: str) -> ProjectId:
    project_id = ProjectId(UUID(int=31))
    patch = ProjectPatch(name="Billing", instructions=instructions)
    async with rig.pool.transaction() as session:
        await projects.create(session, owner_of(rig), project_id, patch)
    return project_id


async def change_project(rig: EngineRig, project_id: ProjectId, instructions: str) -> None:
    patch = ProjectPatch(instructions=instructions)
    async with rig.pool.transaction() as session:
        await projects.update(session, owner_of(rig), project_id, patch)


async def add_file(rig: EngineRig, project_id: ProjectId, name: str, data: bytes) -> None:
    store, actor = DatabaseFileStore(rig.pool), owner_of(rig)
    file_id = FileId(UUID(bytes=sha256(data).digest()[:16]))
    chunk = store.chunk_bytes
    await file_stores.begin_upload(rig.pool, file_id, actor, store=store.name, chunk_bytes=chunk)
    for number in range(-(-len(data) // chunk)):
        await store.write(file_id, number, data[number * chunk : (number + 1) * chunk])
    new = NewFile(
        name=name,
        media_type="text/plain",
        size_bytes=len(data),
        sha256=sha256(data).hexdigest(),
    )
    await file_stores.finish_upload(rig.pool, file_id, new, FileLimits())
    async with rig.pool.transaction() as session:
        await projects.add_file(session, actor, project_id, file_id, name)


def request_text(rig: EngineRig, number: int = -1) -> str:
    return rig.api.requests[number].body.decode()


async def test_a_chat_of_a_project_is_told_its_instructions_and_once_what_changes(
    dsn: str,
) -> None:
    async with project_rig(dsn) as (rig, directory):
        project_id = await create_project(rig, "Use cents.")
        rig.answer("hello")
        chat_id = await rig.create("hi", project_id=project_id)
        chat = await rig.wait_chat_task_left(chat_id)
        assert "Use cents." in request_text(rig)
        await change_project(rig, project_id, "Use euros.")

        async def is_known() -> bool:
            return "Use euros." in ((await directory.texts(chat)).instructions or "")

        await eventually(is_known)
        for epoch in (3, 5):
            rig.answer("again")
            await rig.send(chat_id, "more")
            await rig.wait_chat_task_left(chat_id, epoch=epoch)
            assert request_text(rig).count("Use euros.") == 1
            assert "Use cents." in request_text(rig), "what was sent is not rewritten"
        async with rig.pool.transaction() as session:
            await projects.delete(session, owner_of(rig), project_id)
        rig.answer("bye")
        await rig.send(chat_id, "and now?")
        await rig.wait_chat_task_left(chat_id, epoch=7)
        assert "The instructions of the project given earlier no longer apply" in request_text(rig)


async def test_a_chat_without_a_project_is_told_of_none(dsn: str) -> None:
    async with project_rig(dsn) as (rig, _):
        chat_id = await rig.ask("hi", "hello")
        await rig.wait_chat_task_left(chat_id)
        assert "project" not in request_text(rig).partition('"tools"')[0]


async def test_short_files_are_told_and_long_ones_are_read(dsn: str) -> None:
    async with project_rig(dsn) as (rig, _):
        project_id = await create_project(rig, "")
        await add_file(rig, project_id, "style.md", b"Write short sentences.")
        long = b"\n".join(b"row %d" % number for number in range(10_000))
        await add_file(rig, project_id, "rows.csv", long)
        path = "/chatd/project/rows.csv"
        other = "/chatd/project/none.csv"
        rig.call_tools(
            ("c1", "read_file", f'{{"path": "{path}", "offset": 9999, "limit": 5}}'),
            ("c2", "read_file", f'{{"path": "{other}"}}'),
        )
        rig.answer("done")
        chat_id = await rig.create("read it", project_id=project_id)
        await rig.wait_chat_task_left(chat_id)
        first, second = request_text(rig, -2), request_text(rig)
        assert "Write short sentences." in first
        assert (path in first, "row 5000" in first) == (True, False)
        assert "row 9998" in second
        assert "has no file" in second

"""What a chat's model is told of the chat's project: its instructions, and its files."""

from collections import OrderedDict
from contextlib import aclosing
from typing import Final

from msgspec import Struct

from chatd.domain.chat.row import Chat
from chatd.domain.deployment.config_change import ConfigChange
from chatd.domain.errors import ChatdError, Unavailable
from chatd.domain.files import ByteRange, StoredFile
from chatd.domain.ids import ProjectId
from chatd.domain.ports import Env
from chatd.domain.projects import files_in_prompt, files_text, instruction_text
from chatd.domain.text import decode_lenient
from chatd.store import projects
from chatd.store.database.notifications import ConfigChanges
from chatd.store.database.pool import Pool
from chatd.store.file_stores import FileStores

MAX_CACHED_PROJECTS: Final = 500
"""Of which the texts are in memory: at most some 64 KiB of each."""


class ProjectTexts(Struct, frozen=True, kw_only=True):
    """The sections of the instructions. None: not known now. Empty: there is nothing."""

    instructions: str | None
    files: str | None


NO_PROJECT: Final = ProjectTexts(instructions="", files="")
UNREADABLE: Final = ProjectTexts(instructions=None, files=None)


class ProjectDirectory:
    """The texts of a project are read once and kept until it changes. While this replica hears of
    no changes, every use reads them again. A file whose bytes are lost is only listed."""

    def __init__(self, pool: Pool, stores: FileStores, changes: ConfigChanges, env: Env) -> None:
        self._pool = pool
        self._stores = stores
        self._changes = changes
        self._env = env
        self._known: OrderedDict[ProjectId, ProjectTexts] = OrderedDict()
        self._generation = 0
        changes.subscribe(self.on_config_change)

    def on_config_change(self, change: ConfigChange | None) -> None:
        """A value that was read before the change is not kept. A template has no notices of its
        own: its new name is told after the next change of the project."""
        if change is None or change.kind == "project":
            self._generation += 1
            self._known.clear()

    async def texts(self, chat: Chat) -> ProjectTexts:
        project_id = chat.project_id
        if project_id is None:
            return NO_PROJECT
        if self._changes.is_current and (known := self._known.get(project_id)) is not None:
            return known
        generation = self._generation
        try:
            found = await self._read(project_id)
        except ChatdError as error:
            self._env.emit("project_unreadable", chat_id=chat.id, error_kind=error.code)
            return UNREADABLE
        if generation == self._generation:
            self._known[project_id] = found
            while len(self._known) > MAX_CACHED_PROJECTS:
                self._known.popitem(last=False)
        return found

    async def _read(self, project_id: ProjectId) -> ProjectTexts:
        brief = await projects.read_brief(self._pool, project_id)
        if brief is None:
            return NO_PROJECT
        whole: list[tuple[str, str]] = []
        for one in files_in_prompt(brief.files):
            try:
                whole.append((one.name, decode_lenient(await self._read_bytes(one.file))))
            except Unavailable as error:
                if error.code != "file_lost":
                    raise
        return ProjectTexts(
            instructions=instruction_text(brief), files=files_text(brief.files, whole)
        )

    async def _read_bytes(self, file: StoredFile) -> bytes:
        part = ByteRange(0, file.size_bytes)
        async with aclosing(self._stores.of(file.store).read(file, part)) as pieces:
            return b"".join([piece async for piece in pieces])

"""The files that the messages of a change name. Each becomes a link, which keeps the file."""

from typing import Final
from uuid import UUID

from chatd.domain.chat.change import Change
from chatd.domain.chat.parts import FilePart
from chatd.domain.errors import TooManyFiles
from chatd.domain.ids import FileId

MAX_FILES_PER_CHAT: Final = 50
_NO_FILES: Final[frozenset[FileId]] = frozenset()


def named_files(change: Change) -> frozenset[FileId]:
    """Of the messages of users. A promoted message has named its files when it was queued."""
    contents = [one.draft.content for one in change.messages if one.draft.role == "user"]
    if change.enqueue or change.rewrite:
        contents += [one.prompt.content for one in (*change.enqueue, *change.rewrite)]
    if not contents:  # most changes, and every commit asks
        return _NO_FILES
    return frozenset(
        FileId(UUID(part.file_id))
        for content in contents
        for part in content
        if isinstance(part, FilePart) and part.file_id is not None
    )


def require_file_limit(change: Change, linked: frozenset[FileId] = frozenset()) -> Change:
    """`linked` are the files that the chat's messages have named so far. Raises TooManyFiles."""
    named = named_files(change)
    if named and len(named | linked) > MAX_FILES_PER_CHAT:
        raise TooManyFiles(MAX_FILES_PER_CHAT)
    return change

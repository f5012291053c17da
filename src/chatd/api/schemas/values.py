"""Types of single values in bodies and queries."""

from typing import Annotated
from uuid import UUID

from msgspec import Meta

from chatd.domain.chat.cursor import CURSOR_PATTERN

MAX_INT32 = 2**31 - 1
MAX_INT64 = 2**63 - 1
NonBlankText = Annotated[str, Meta(min_length=1, pattern=r"\S")]
Id = Annotated[int, Meta(ge=1, le=MAX_INT64)]
Version = Annotated[int, Meta(ge=0, le=MAX_INT64)]
CursorText = Annotated[str, Meta(pattern=CURSOR_PATTERN)]
McpServerIds = Annotated[tuple[UUID, ...], Meta(max_length=100)]
LineNumber = Annotated[int, Meta(ge=0, le=MAX_INT32)]

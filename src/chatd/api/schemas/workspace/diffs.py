"""Diffs of a chat. Docstrings here are part of the OpenAPI document."""

from typing import Annotated, Final

from msgspec import Meta, Struct

from chatd.domain.workspace.agent_api import DiffScope, ScopedDiff

SCOPE_TEXT: Final = (
    "`turn`: what the current or last turn changed. `chat`: what changed since the chat first"
    " changed the repository. `git`: everything since the last commit."
)


class DiffQuery(Struct, frozen=True, kw_only=True):
    scope: Annotated[DiffScope, Meta(description=SCOPE_TEXT, examples=["turn"])] = "git"


class ChatDiffReply(Struct, frozen=True, kw_only=True):
    """The changes in the repositories of a chat."""

    scope: Annotated[DiffScope, Meta(description=SCOPE_TEXT, examples=["turn"])]
    repositories: Annotated[
        tuple[ScopedDiff, ...],
        Meta(description="The repositories that the chat has touched, with their changes."),
    ]

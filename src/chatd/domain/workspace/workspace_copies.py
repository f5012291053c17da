"""Which workspaces can be copied with a chat. Pure."""

from typing import Final

from chatd.domain.errors import Conflict
from chatd.domain.workspace.entities import Template
from chatd.domain.workspace.templates import needs_own_runner

DEFAULT_MAX_COPY_BYTES: Final = 2 << 30
_MIB: Final = 1 << 20


def copied_text(size: int, files: int) -> str:
    return f"{files:,} files, {-(-size // _MIB):,} MiB"


def size_problem(size: int, max_bytes: int) -> str:
    """Empty if it may be copied."""
    if size <= max_bytes:
        return ""
    return (
        f"The workspace has {-(-size // _MIB):,} MiB, and at most {max_bytes // _MIB:,} MiB are"
        " copied. Delete what is not needed, or fork the chat without its workspace."
    )


def require_copyable(template: Template) -> None:
    """Raises Conflict for a workspace that is a directory of its user's machine: a second one would
    be the same directory."""
    if needs_own_runner(template):
        text = "The workspace is a directory of your own machine, which is not copied."
        raise Conflict(text, code="workspace_not_copied")


def require_size(size: int, max_bytes: int) -> None:
    """Raises Conflict."""
    if problem := size_problem(size, max_bytes):
        raise Conflict(problem, code="workspace_too_large")

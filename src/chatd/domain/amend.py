"""What people set on a chat beside its moves: title, labels, pin, its workspace, and whether it is
archived.

Owns which of that a chat refuses, all of it at once: an amendment is made whole or not at all.
What is so already is not refused: whoever asks twice wants no more than once.
"""

from collections.abc import Mapping

from msgspec import UNSET, Struct, UnsetType

from chatd.domain.chat import Chat
from chatd.domain.errors import InvalidInput
from chatd.domain.ids import WorkspaceId


class Amendment(Struct, frozen=True, kw_only=True):
    """None leaves a thing as it is, but for the workspace: there it means none at all. Labels
    replace all labels."""

    title: str | None = None
    labels: Mapping[str, str] | None = None
    pin_order: int | None = None
    archived: bool | None = None
    workspace_id: WorkspaceId | UnsetType | None = UNSET


def check_amendment(chat: Chat, wanted: Amendment) -> None:
    """Raises InvalidInput."""
    if not wanted.pin_order:
        return
    if not chat.is_root:
        raise InvalidInput("pin_order", "only a root chat can be pinned")
    if chat.archived if wanted.archived is None else wanted.archived:
        raise InvalidInput("pin_order", "an archived chat cannot be pinned")

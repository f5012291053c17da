"""Who reads a chat beside its owner: users and groups. Pure.

Only root chats are shared; their subagents are read by the same users.
"""

from collections.abc import Collection, Mapping
from typing import Final, Literal, TypeVar

from msgspec import Struct

from chatd.domain.access.permissions import Actor, require_share_change
from chatd.domain.errors import Conflict, InvalidInput, RequestError
from chatd.domain.ids import ChatId, GroupId, UserId

T = TypeVar("T", UserId, GroupId)

MAX_READERS: Final = 100
"""Users and groups with which one chat is shared."""

MAX_SHARED_PREVIEWS: Final = 20
"""Ports of a workspace that the readers of one chat see."""

ShareRole = Literal["read", ""]
"""An empty role removes the reader."""


class Readers(Struct, frozen=True, kw_only=True):
    users: frozenset[UserId] = frozenset()
    groups: frozenset[GroupId] = frozenset()

    @property
    def count(self) -> int:
        return len(self.users) + len(self.groups)


class ShareTarget(Struct, frozen=True, kw_only=True):
    """The chat to share, and its readers now."""

    chat_id: ChatId
    owner_id: UserId
    is_root: bool
    readers: Readers


class ShareRequest(Struct, frozen=True, kw_only=True):
    """Roles by user and by group; None is the same as an empty role."""

    users: Mapping[UserId, ShareRole | None] = {}
    groups: Mapping[GroupId, ShareRole | None] = {}


class ShareChange(Struct, frozen=True, kw_only=True):
    """The readers to add and to remove."""

    added: Readers
    removed: Readers

    @property
    def is_empty(self) -> bool:
        return self.added.count + self.removed.count == 0


class UnknownReaders(RequestError):
    """Users that do not exist or are not active, and groups that do not exist."""

    code = "invalid_input"

    def __init__(self, users: Collection[UserId], groups: Collection[GroupId]) -> None:
        super().__init__("Some users or groups do not exist. Nothing was changed.")
        self.users = sorted(users)
        self.groups = sorted(groups)


def decide_shares(actor: Actor, target: ShareTarget, request: ShareRequest) -> ShareChange:
    """Readers that are there already, and removed ones that are not, change nothing. Raises
    Forbidden, Conflict, InvalidInput."""
    readers = target.readers
    added = Readers(
        users=_with_role(request.users) - readers.users,
        groups=_with_role(request.groups) - readers.groups,
    )
    removed = Readers(
        users=readers.users & (request.users.keys() - _with_role(request.users)),
        groups=readers.groups & (request.groups.keys() - _with_role(request.groups)),
    )
    require_share_change(actor, target.owner_id, adds=added.count > 0)
    if not target.is_root:
        raise Conflict(
            "A subagent is shared with its root chat. Share that one.", code="not_a_root_chat"
        )
    if target.owner_id in request.users:
        raise InvalidInput("user_roles", "the owner reads the chat already; name other users")
    if added.count and readers.count + added.count - removed.count > MAX_READERS:
        raise Conflict(
            f"A chat can be shared with {MAX_READERS} users and groups. Share it with a group of"
            " these users.",
            code="too_many_readers",
        )
    return ShareChange(added=added, removed=removed)


def _with_role(roles: Mapping[T, ShareRole | None]) -> frozenset[T]:
    return frozenset(reader for reader, role in roles.items() if role)


def require_preview_share(
    ports: Collection[int], *, shared: bool, is_root: bool, has_workspace: bool
) -> None:
    """For one chat, of which `ports` are shared already. Raises Conflict."""
    if not is_root:
        text = "A subagent is shared with its root chat. Share a preview of that chat."
        raise Conflict(text, code="not_a_root_chat")
    if not shared:
        return
    if not has_workspace:
        raise Conflict("The chat has no workspace, so it has no previews.", code="no_workspace")
    if len(ports) >= MAX_SHARED_PREVIEWS:
        text = f"A chat shares at most {MAX_SHARED_PREVIEWS} previews. Stop sharing one first."
        raise Conflict(text, code="too_many_previews")

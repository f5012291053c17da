"""The audit of reads: an administrator or a viewer who reads another user's chat, file or workspace
by the role. A read that the owner or a share allows is not recorded."""

from msgspec.structs import replace

from chatd.api.auth import ApiCaller
from chatd.api.deps import ApiDeps
from chatd.domain.access.permissions import needs_audit
from chatd.domain.chat.row import Chat
from chatd.domain.errors import NotFound
from chatd.domain.files import StoredFile
from chatd.domain.ids import UserId
from chatd.store import files
from chatd.store.account import audit
from chatd.store.chat import chats


async def audit_read(deps: ApiDeps, caller: ApiCaller, chat: Chat) -> None:
    """Before the content is sent: a read that cannot be recorded fails. Once for each stream. An
    owner costs no statement."""
    if not needs_audit(caller.actor, chat.owner_id):
        return
    by_share = replace(caller.actor, role="member")
    if await deps.retry(lambda: chats.get(deps.pool, by_share, chat.id)) is not None:
        return
    await _record(deps, caller, "chat", chat.id, chat.owner_id)


async def audit_file_read(deps: ApiDeps, caller: ApiCaller, file: StoredFile) -> None:
    """Before the content is sent. An owner costs no statement."""
    if not needs_audit(caller.actor, file.owner_id):
        return
    by_share = replace(caller.actor, role="member")
    try:
        await deps.retry(lambda: files.get(deps.pool, file.id, by_share))
    except NotFound:
        await _record(deps, caller, "file", file.id, file.owner_id)


async def audit_workspace_read(deps: ApiDeps, caller: ApiCaller, chat: Chat) -> None:
    """Before files of the chat's workspace are sent. No share allows that, only the role."""
    if needs_audit(caller.actor, chat.owner_id):
        await _record(deps, caller, "workspace", chat.workspace_id or chat.id, chat.owner_id)


async def _record(
    deps: ApiDeps, caller: ApiCaller, kind: str, object_id: object, owner_id: UserId
) -> None:
    await deps.retry(
        lambda: audit.record(
            deps.pool,
            caller.actor,
            action=f"{kind}.read",
            object_type=kind,
            object_id=object_id,
            detail={"owner_id": str(owner_id)},
        )
    )

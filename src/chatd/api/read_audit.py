"""The audit of reads: an administrator or a viewer who reads another user's chat by the role."""

from msgspec.structs import replace

from chatd.api.auth import ApiCaller
from chatd.api.deps import ApiDeps
from chatd.domain.access import needs_audit
from chatd.domain.chat.row import Chat
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
    await deps.retry(
        lambda: audit.record(
            deps.pool,
            caller.actor,
            action="chat.read",
            object_type="chat",
            object_id=chat.id,
            detail={"owner_id": str(chat.owner_id)},
        )
    )

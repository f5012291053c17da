"""How a worker shows an agent that it owns its chat.

An agent acts for one owner of a chat at a time. If it knows another one, or none because it has
just started, it does nothing and asks for a proof, named by a mark. The worker then reads the
chat's row, and only the worker that the row names sends the request again with the mark. So a
worker that has lost its chat is refused, and a database that was restored to an older state, with
lower epochs, is obeyed.
"""

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from chatd.domain.chat.row import Fence
from chatd.domain.errors import ChatdError
from chatd.domain.ids import ChatId
from chatd.workspaces.agents.client import AgentConnection
from chatd.workspaces.agents.resolver import BindingStore
from chatd.workspaces.agents.session import AgentRequest
from chatd.workspaces.agents.wire import EPOCH_HEADER, OwnerUnproven

MAX_OWNER_CHECKS: Final = 3
"""How often one request proves that its worker owns the chat. The agent asks again if it was
restarted meanwhile."""
OWNER_UNREAD_TEXT: Final = (
    "Nothing was done: chatd's own database did not answer whether this worker still owns the chat."
    " Try again in a moment."
)
_NO_MARK: Final = "-"


class ChatOwner:
    """`on_proven` is called when the row has named the worker as the owner."""

    def __init__(
        self,
        bindings: BindingStore,
        chat_id: ChatId,
        fence: Fence,
        on_proven: Callable[[], None],
    ) -> None:
        self._bindings = bindings
        self._on_proven = on_proven
        self.chat_id = chat_id
        self.fence = fence

    def is_same(self, fence: Fence) -> bool:
        mine = (self.fence.epoch, self.fence.worker_id)
        return mine == (fence.epoch, fence.worker_id)

    async def send(self, sender: AgentConnection, request: AgentRequest) -> bytes:
        """Raises OwnerUnproven; the agent has then done nothing."""
        if not request.has_effect or not sender.asks_for_owner:
            return await sender.send(request)
        mark, checks = _NO_MARK, 0
        while True:
            claim = f"{self.fence.epoch} {self.fence.worker_id} {mark}"
            headers = {**request.headers, EPOCH_HEADER: claim}
            try:
                return await sender.send(replace(request, headers=headers))
            except OwnerUnproven as refusal:
                checks += 1
                if checks > MAX_OWNER_CHECKS or not await self._is_owner(refusal):
                    raise
                mark = refusal.fence
            self._on_proven()

    async def _is_owner(self, refusal: OwnerUnproven) -> bool:
        try:
            return await self._bindings.is_owner(self.chat_id, self.fence)
        except ChatdError as unread:
            raise OwnerUnproven(OWNER_UNREAD_TEXT, refusal.fence) from unread

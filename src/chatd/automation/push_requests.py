"""Makes the requests that tell a browser of the end of a turn, by its vendor's push service.

One key signs for all replicas. The first that needs it creates it, sealed, in the database.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from msgspec import Struct

from chatd.automation.push_messages import PushSigner, encrypt_push, new_signing_key
from chatd.domain.errors import ChatdError
from chatd.domain.ids import ChatId
from chatd.domain.ports import Env
from chatd.domain.push import decode_keys, needs_summary, push_payload
from chatd.sealed_secrets import KeyRing
from chatd.store import push
from chatd.store.conn import Conn
from chatd.store.push import SIGNING_KEY, StoredSigningKey
from chatd.store.webhooks import ClaimedDelivery

DEFAULT_CONTACT: Final = "mailto:operator@localhost"
"""Push services want to know whom they can write to about this server."""


class DeliveryRequest(Struct, frozen=True, kw_only=True):
    headers: dict[str, str]
    body: bytes


SummarizeTurn = Callable[[ChatId, str], Awaitable[str | None]]
"""In a few words what the answer of this chat says. None: no model said it in time."""

MAX_SUMMARIES_KEPT: Final = 200


class _TurnSummary:
    """Made once for all browsers of a user, and for later attempts of this process."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.is_made = False
        self.text: str | None = None


class PushRequests:
    """`contact`: an https or mailto URL of the operator. Without `summarize`, and if it fails, a
    browser is told the beginning of the answer."""

    def __init__(
        self,
        conn: Conn,
        ring: KeyRing,
        env: Env,
        *,
        contact: str,
        summarize: SummarizeTurn | None = None,
    ) -> None:
        self._conn = conn
        self._ring = ring
        self._env = env
        self._contact = contact
        self._summarize = summarize
        self._summaries: dict[tuple[ChatId, int], _TurnSummary] = {}
        self._signer: PushSigner | None = None

    async def public_key(self) -> str:
        """With it a browser subscribes. Raises Unavailable and SecretUnreadable."""
        return (await self._load_signer()).public_key

    async def make(self, claimed: ClaimedDelivery, secret: str) -> DeliveryRequest:
        """`secret`: the browser's keys, opened. Raises ChatdError."""
        signer = await self._load_signer()
        keys = decode_keys(*secret.split(".", 1))
        delivery = claimed.delivery
        answer = None
        if delivery.event == "turn.finished" and delivery.chat_id is not None:
            answer = await push.last_answer(self._conn, delivery.chat_id)
            if answer is not None and needs_summary(answer):
                turn = (delivery.chat_id, delivery.version or 0)
                answer = await self._summary_of(turn, answer) or answer
        now_s = int(self._env.clock.now().timestamp())
        return DeliveryRequest(
            headers=signer.headers(claimed.url, self._contact, now_s),
            body=encrypt_push(push_payload(delivery, answer), keys),
        )

    async def _summary_of(self, turn: tuple[ChatId, int], answer: str) -> str | None:
        if self._summarize is None:
            return None
        summary = self._summaries.setdefault(turn, _TurnSummary())
        if len(self._summaries) > MAX_SUMMARIES_KEPT:
            del self._summaries[next(iter(self._summaries))]
        async with summary.lock:
            if not summary.is_made:
                summary.text = await self._summarize(turn[0], answer)
                summary.is_made = True
            return summary.text

    async def _load_signer(self) -> PushSigner:
        if self._signer is None:
            self._signer = PushSigner(await self._load_key())
        return self._signer

    async def _load_key(self) -> str:
        stored = await push.load_signing_key(self._conn)
        if stored is None:
            key_id = self._env.new_id()
            pem = await asyncio.to_thread(new_signing_key)
            sealed = self._ring.seal(pem, SIGNING_KEY.context(key_id))
            await push.insert_signing_key(self._conn, StoredSigningKey(id=key_id, sealed=sealed))
            stored = await push.load_signing_key(self._conn)
        if stored is None:
            raise ChatdError("The key of web push was deleted; try again.")
        return self._ring.open(stored.sealed, SIGNING_KEY.context(stored.id))

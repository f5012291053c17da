"""Makes the requests that tell a browser of the end of a turn, by its vendor's push service.

One key signs for all replicas. The first that needs it creates it, sealed, in the database.
"""

import asyncio
from typing import Final

from msgspec import Struct

from chatd.automation.push_messages import PushSigner, encrypt_push, new_signing_key
from chatd.domain.errors import ChatdError
from chatd.domain.ports import Env
from chatd.domain.push import decode_keys, push_payload
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


class PushRequests:
    """`contact`: an https or mailto URL of the operator."""

    def __init__(self, conn: Conn, ring: KeyRing, env: Env, *, contact: str) -> None:
        self._conn = conn
        self._ring = ring
        self._env = env
        self._contact = contact
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
        now_s = int(self._env.clock.now().timestamp())
        return DeliveryRequest(
            headers=signer.headers(claimed.url, self._contact, now_s),
            body=encrypt_push(push_payload(delivery, answer), keys),
        )

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

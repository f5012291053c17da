"""Tells browsers of the end of a turn, by the push service of their vendor.

First the messages of web push: encrypted (RFC 8291, aes128gcm) and signed for the push service
(VAPID, RFC 8292), pure but for random numbers. Then the requests that carry them.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import urlsplit

import msgspec
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from msgspec import Struct

from chatd.domain.deployment.push import (
    PUSH_TTL_S,
    SubscriptionKeys,
    decode_keys,
    encode_base64url,
    needs_summary,
    push_payload,
)
from chatd.domain.errors import ChatdError
from chatd.domain.ids import ChatId
from chatd.domain.ports import Env
from chatd.sealed_secrets import KeyRing
from chatd.store import webhooks
from chatd.store.conn import Conn
from chatd.store.webhooks import SIGNING_KEY, ClaimedDelivery, StoredSigningKey

RECORD_BYTES: Final = 4096
SALT_BYTES: Final = 16
TOKEN_LIFETIME_S: Final = 12 * 3600
_CURVE: Final = ec.SECP256R1()
_LAST_RECORD: Final = b"\x02"


class PushSigner:
    """The key by which push services know this deployment. Browsers subscribe with its public
    half, so another key would end all subscriptions."""

    def __init__(self, pem: str) -> None:
        key = load_pem_private_key(pem.encode(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        self._key = key
        self.public_key: Final = encode_base64url(_point(key.public_key()))

    def headers(self, endpoint: str, contact: str, now_s: int) -> dict[str, str]:
        """The token is for the service of this endpoint only."""
        pieces = urlsplit(endpoint)
        claims = {
            "aud": f"{pieces.scheme}://{pieces.netloc}",
            "exp": now_s + TOKEN_LIFETIME_S,
            "sub": contact,
        }
        head = encode_base64url(msgspec.json.encode({"typ": "JWT", "alg": "ES256"}))
        signed = f"{head}.{encode_base64url(msgspec.json.encode(claims))}"
        r, s = decode_dss_signature(self._key.sign(signed.encode(), ec.ECDSA(SHA256())))
        signature = encode_base64url(r.to_bytes(32, "big") + s.to_bytes(32, "big"))
        return {
            "authorization": f"vapid t={signed}.{signature}, k={self.public_key}",
            "content-encoding": "aes128gcm",
            "content-type": "application/octet-stream",
            "ttl": str(PUSH_TTL_S),
            "urgency": "normal",
        }


def new_signing_key() -> str:
    key = ec.generate_private_key(_CURVE)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def encrypt_push(
    payload: bytes,
    keys: SubscriptionKeys,
    *,
    salt: bytes | None = None,
    sender: ec.EllipticCurvePrivateKey | None = None,
) -> bytes:
    """One record, which only the browser can read. `salt` and `sender` are random but in tests."""
    salt = salt or os.urandom(SALT_BYTES)
    sender = sender or ec.generate_private_key(_CURVE)
    receiver = ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, keys.p256dh)
    public = _point(sender.public_key())
    info = b"WebPush: info\x00" + keys.p256dh + public
    material = _derive(keys.auth, sender.exchange(ec.ECDH(), receiver), info, 32)
    key = _derive(salt, material, b"Content-Encoding: aes128gcm\x00", 16)
    nonce = _derive(salt, material, b"Content-Encoding: nonce\x00", 12)
    sealed = AESGCM(key).encrypt(nonce, payload + _LAST_RECORD, None)
    return salt + RECORD_BYTES.to_bytes(4, "big") + bytes([len(public)]) + public + sealed


def _derive(salt: bytes, material: bytes, info: bytes, length: int) -> bytes:
    return HKDF(algorithm=SHA256(), length=length, salt=salt, info=info).derive(material)


def _point(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)


# Makes the requests that tell a browser of the end of a turn, by its vendor's push service.
#
# One key signs for all replicas. The first that needs it creates it, sealed, in the database.

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
            answer = await webhooks.last_answer(self._conn, delivery.chat_id)
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
        stored = await webhooks.load_signing_key(self._conn)
        if stored is None:
            key_id = self._env.new_id()
            pem = await asyncio.to_thread(new_signing_key)
            sealed = self._ring.seal(pem, SIGNING_KEY.context(key_id))
            await webhooks.insert_signing_key(
                self._conn, StoredSigningKey(id=key_id, sealed=sealed)
            )
            stored = await webhooks.load_signing_key(self._conn)
        if stored is None:
            raise ChatdError("The key of web push was deleted; try again.")
        return self._ring.open(stored.sealed, SIGNING_KEY.context(stored.id))

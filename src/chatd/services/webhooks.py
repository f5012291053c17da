"""Sends the deliveries of webhooks that are due, and tells browsers of the end of a turn.

Every replica may send: a claim in the database keeps two of them from sending one delivery at the
same time. A delivery is sent again if its sender dies or the answer is lost: receivers get each one
at least once.
"""

import asyncio
import errno
import os
import secrets
import socket
from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import urlencode, urlsplit

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult
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
from yarl import URL

from chatd.aio import first_of
from chatd.domain.access.permissions import WORKER
from chatd.domain.access.secret_text import SECRET_BYTES, secret_text
from chatd.domain.addresses import is_public
from chatd.domain.chat.call_waits import call_deadlines, call_fingerprint
from chatd.domain.deployment.answer_links import (
    ANSWER_PATH,
    first_approval,
    headline,
    may_have_link,
)
from chatd.domain.deployment.webhooks import (
    PUSH_TTL_S,
    DeliveryReply,
    NotifiedCall,
    SubscriptionKeys,
    body_of,
    decode_keys,
    encode_base64url,
    needs_summary,
    push_payload,
    reason_to_disable,
    retry_delay_s,
    signed_headers,
)
from chatd.domain.errors import ChatdError, InvalidInput
from chatd.domain.ids import ChatId
from chatd.domain.ports import Env
from chatd.sealed_secrets import KeyRing
from chatd.store.account import answer_links
from chatd.store.account.answer_links import NewAnswerLink
from chatd.store.chat import chats
from chatd.store.database.conn import Conn
from chatd.store.deployment import webhooks
from chatd.store.deployment.webhooks import (
    SECRET_COLUMN,
    SIGNING_KEY,
    ClaimedDelivery,
    StoredSigningKey,
)

# Tells browsers of the end of a turn, by the push service of their vendor.
#
# First the messages of web push: encrypted (RFC 8291, aes128gcm) and signed for the push service
# (VAPID, RFC 8292), pure but for random numbers. Then the requests that carry them.

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
        allows_answer_links: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        """`allows_answer_links`: whether the settings have links that answer a call; None: no."""
        self._conn = conn
        self._ring = ring
        self._env = env
        self._contact = contact
        self._summarize = summarize
        self._allows_answer_links = allows_answer_links
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
        call = None
        if delivery.event == "turn.needs_action" and delivery.chat_id is not None:
            call = await self._notified_call(delivery.chat_id)
        now_s = int(self._env.clock.now().timestamp())
        return DeliveryRequest(
            headers=signer.headers(claimed.url, self._contact, now_s),
            body=encrypt_push(push_payload(delivery, answer, call), keys),
        )

    async def _notified_call(self, chat_id: ChatId) -> NotifiedCall | None:
        """As the chat is now. None if no call waits for approval. A repeated delivery makes another
        link; each answers the call once, and the call is answered once."""
        chat = await chats.get(self._conn, WORKER, chat_id)
        call = None if chat is None else first_approval(chat)
        if chat is None or call is None:
            return None
        path = None
        allows = self._allows_answer_links
        if allows is not None and may_have_link(call) and await allows():
            secret = secret_text(secrets.token_bytes(SECRET_BYTES))
            new = NewAnswerLink(
                id=self._env.new_id(),
                chat_id=chat.id,
                tool_call_id=call.id,
                user_id=chat.owner_id,
                fingerprint=call_fingerprint(chat, call),
                secret=secret,
                deadline=call_deadlines(chat).get(call.id),
            )
            await answer_links.insert(self._conn, new)
            path = f"{ANSWER_PATH}#{secret}"
        return NotifiedCall(
            query=urlencode({"call": call.id}), text=headline(call), answer_path=path
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


def check_webhook_url(url: str) -> str:
    """Raises InvalidInput."""
    try:
        pieces = urlsplit(url)
        host, _ = pieces.hostname, pieces.port
    except ValueError:
        raise InvalidInput("url", "is not a valid URL") from None
    if pieces.scheme not in ("http", "https") or not host:
        raise InvalidInput("url", "must be an absolute http or https URL")
    if pieces.username is not None or pieces.password is not None:
        raise InvalidInput("url", "must not contain a user or password")
    if pieces.fragment:
        raise InvalidInput("url", "must not have a fragment (#...)")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise InvalidInput("url", "must be printable ASCII without spaces")
    return url


POLL_INTERVAL_S: Final = 5.0
IDLE_POLL_INTERVAL_S: Final = 60.0
SEND_TIMEOUT_S: Final = 15.0
CLAIM_S: Final = 60.0
MAX_AT_ONCE: Final = 16
MAX_PER_WEBHOOK: Final = 2
MAX_FAILURE_CHARS: Final = 300

PRIVATE_TEXT: Final = (
    "The host is not on the public internet. Set webhooks.private_addresses to allow it."
)


class GuardedResolver(AbstractResolver):
    """Resolves a name once and gives the connection only the public addresses."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)
        public = [item for item in found if is_public(str(item[4][0]))]
        if found and not public:
            raise OSError(errno.EACCES, PRIVATE_TEXT)
        return [
            ResolveResult(
                hostname=host,
                host=str(address[0]),
                port=int(address[1]),
                family=kind,
                proto=proto,
                flags=socket.AI_NUMERICHOST,
            )
            for kind, _, proto, _, address in public
        ]

    async def close(self) -> None:
        """Nothing here stays open."""


class WebhookSender:
    """`run` sends until it is cancelled; `wake` lets it look for deliveries now. While there is no
    webhook, it looks seldom, and the ends of turns do not wake it."""

    def __init__(
        self, conn: Conn, ring: KeyRing, env: Env, pushes: PushRequests, *, allow_private: bool
    ) -> None:
        self.pushes = pushes
        self._conn = conn
        self._ring = ring
        self._env = env
        self._allow_private = allow_private
        self._wake = asyncio.Event()
        self._has_webhooks = True

    def wake(self) -> None:
        self._wake.set()

    def on_turn_end(self) -> None:
        if self._has_webhooks:
            self.wake()

    async def run(self) -> None:
        async with self._session() as http:
            while True:
                self._wake.clear()
                if not await self._send_due(http):
                    await self._wait()

    async def _wait(self) -> None:
        interval_s = POLL_INTERVAL_S if self._has_webhooks else IDLE_POLL_INTERVAL_S
        await first_of(self._env.clock.sleep(interval_s, "webhooks"), _wait_for(self._wake))

    async def _send_due(self, http: aiohttp.ClientSession) -> bool:
        """Whether there were any, and perhaps there are more."""
        try:
            due = await webhooks.claim(
                self._conn, limit=MAX_AT_ONCE, per_webhook=MAX_PER_WEBHOOK, claim_s=CLAIM_S
            )
            self._has_webhooks = bool(due) or await webhooks.has_any(self._conn)
        except ChatdError as error:
            self._env.emit("webhooks_unread", error_kind=error.code)
            return False
        async with asyncio.TaskGroup() as group:
            for claimed in due:
                group.create_task(self._deliver(http, claimed), name="webhook")
        return bool(due)

    async def _deliver(self, http: aiohttp.ClientSession, claimed: ClaimedDelivery) -> None:
        delivery = claimed.delivery
        reply = await self._send(http, claimed)
        retry_after_s = None
        if not reply.is_success and delivery.event != "ping":
            retry_after_s = retry_delay_s(delivery.attempts, self._env.jitter())
        disable = reason_to_disable(reply, claimed.failing_for_s, claimed.kind)
        if not reply.is_success:
            self._env.emit(
                "webhook_failed",
                webhook_id=delivery.webhook_id,
                attempts=delivery.attempts,
                status=reply.status,
                disabled=disable is not None,
            )
        try:
            await webhooks.finish(
                self._conn,
                delivery,
                reply,
                retry_after_s=None if disable is not None else retry_after_s,
                disable=disable,
            )
        except ChatdError as error:
            # It is due again when the claim ends: the receiver gets it twice.
            self._env.emit("webhooks_unread", error_kind=error.code)

    async def _send(self, http: aiohttp.ClientSession, claimed: ClaimedDelivery) -> DeliveryReply:
        delivery = claimed.delivery
        try:
            context = SECRET_COLUMN.context(delivery.webhook_id)
            secret = self._ring.open(claimed.sealed_secret, context)
            if not self._allow_private and _is_private_address(claimed.url):
                return DeliveryReply(failure=PRIVATE_TEXT)
            request = await self._request(claimed, secret)
            async with (
                asyncio.timeout(SEND_TIMEOUT_S),
                http.post(
                    claimed.url,
                    data=request.body,
                    headers=request.headers,
                    allow_redirects=False,
                ) as response,
            ):
                return DeliveryReply(status=response.status)
        except TimeoutError:
            return DeliveryReply(failure=f"No answer within {SEND_TIMEOUT_S:.0f} seconds.")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return DeliveryReply(failure=str(error)[:MAX_FAILURE_CHARS] or type(error).__name__)
        except ChatdError as error:
            return DeliveryReply(failure=error.message[:MAX_FAILURE_CHARS])

    async def _request(self, claimed: ClaimedDelivery, secret: str) -> DeliveryRequest:
        if claimed.kind == "push":
            return await self.pushes.make(claimed, secret)
        body = body_of(claimed.delivery)
        now_s = int(self._env.clock.now().timestamp())
        headers = signed_headers(f"msg_{claimed.delivery.id}", body, secret, now_s)
        return DeliveryRequest(headers=headers, body=body)

    def _session(self) -> aiohttp.ClientSession:
        if self._allow_private:
            connector = aiohttp.TCPConnector(limit=MAX_AT_ONCE)
        else:
            connector = aiohttp.TCPConnector(limit=MAX_AT_ONCE, resolver=GuardedResolver())
        return aiohttp.ClientSession(connector=connector, trust_env=False, cookie_jar=None)


async def _wait_for(event: asyncio.Event) -> None:
    await event.wait()


def _is_private_address(url: str) -> bool:
    """The client asks no resolver for a host of digits and dots, and the system connects to
    127.0.0.1 for 127.1 and 2130706433 too: such a host must be a public address in full."""
    host = URL(url).host or ""
    is_address = ":" in host or host.replace(".", "").isdigit()
    return is_address and not is_public(host)

"""How a host gets the secrets of its deployment from a running server that has them.

The host writes a request with the public half of a key that it makes for this request and keeps in
memory. A server that has the secrets seals them to that key. X25519 gives both sides the same
value, HKDF makes a key of it that is bound to the request, the host, the deployment's key and both
public keys, and AES-256-GCM seals the reply. Neither private key is stored, so a copy of the
database, now or later, does not open a reply.

Whoever may write to the database can ask like a host does: that is the right by which a server
belongs to the deployment. `server.join = false` turns it off.
"""

import os
from collections.abc import Sequence
from typing import Final
from uuid import UUID

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from msgspec import Struct

from chatd.domain.access.permissions import SystemActor
from chatd.domain.deployment.config_change import ConfigChange
from chatd.domain.ports import Env
from chatd.sealed_secrets import NONCE_BYTES, SecretUnreadable
from chatd.store.account import audit
from chatd.store.database import sealed_columns
from chatd.store.database.conn import DatabaseSession
from chatd.store.database.notifications import publish
from chatd.store.database.pool import Pool
from chatd.store.database.sealed_columns import SecretReply, SecretRequest

FORMAT: Final = "chatd secrets 1"
REPLY_WAIT_S: Final = 30.0
"""A server that runs answers within a second; one that is being restarted is waited for."""
POLL_INTERVAL_S: Final = 0.5


class SharedSecrets(Struct, frozen=True, kw_only=True):
    """`keys` are those of the secrets at rest, as in the key file; `workspaces` is the secret of
    workspaces. Hidden in repr."""

    keys: tuple[str, ...]
    workspaces: str | None = None

    def __repr__(self) -> str:
        return f"SharedSecrets({len(self.keys)} keys)"


class ReceivedSecrets(Struct, frozen=True, kw_only=True):
    request_id: UUID
    sent_by: str
    secrets: SharedSecrets


def new_private_key() -> X25519PrivateKey:
    return X25519PrivateKey.generate()


def public_bytes(private: X25519PrivateKey) -> bytes:
    return private.public_key().public_bytes_raw()


def seal(secrets: SharedSecrets, request: SecretRequest, sender: str) -> SecretReply:
    """Raises SecretUnreadable for a public key that is none."""
    private = new_private_key()
    reply_key = public_bytes(private)
    cipher = _cipher(private, request.public_key, request, reply_key)
    nonce = os.urandom(NONCE_BYTES)
    sealed = nonce + cipher.encrypt(nonce, msgspec.json.encode(secrets), sender.encode())
    return SecretReply(answered_by=sender, reply_key=reply_key, reply=sealed)


def unseal(reply: SecretReply, request: SecretRequest, private: X25519PrivateKey) -> SharedSecrets:
    """Raises SecretUnreadable."""
    cipher = _cipher(private, reply.reply_key, request, reply.reply_key)
    nonce, sealed = reply.reply[:NONCE_BYTES], reply.reply[NONCE_BYTES:]
    try:
        opened = cipher.decrypt(nonce, sealed, reply.answered_by.encode())
        return msgspec.json.decode(opened, type=SharedSecrets)
    except (InvalidTag, ValueError, msgspec.DecodeError):
        raise SecretUnreadable("The reply to a request for secrets does not open.") from None


def _cipher(
    own: X25519PrivateKey, other: bytes, request: SecretRequest, reply_key: bytes
) -> AESGCM:
    try:
        shared = own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:
        raise SecretUnreadable("A request for secrets has an invalid public key.") from None
    bound_to = msgspec.json.encode([FORMAT, request, reply_key])
    return AESGCM(HKDF(algorithm=SHA256(), length=32, salt=None, info=bound_to).derive(shared))


class SecretExchange:
    """Asks for secrets in the name of this process, and answers other hosts."""

    def __init__(self, env: Env, name: str, host_id: str) -> None:
        self._env = env
        self._name = name
        self._host_id = host_id

    async def ask(
        self, pool: Pool, key_id: str, *, with_workspaces: bool, wait_s: float = REPLY_WAIT_S
    ) -> ReceivedSecrets | None:
        """None if no server answers within `wait_s`. The request stays until `finish`, or until it
        expires."""
        private, clock = new_private_key(), self._env.clock
        request = SecretRequest(
            id=self._env.new_id(),
            host_id=self._host_id,
            name=self._name,
            key_id=key_id,
            with_workspaces=with_workspaces,
            public_key=public_bytes(private),
        )
        self._env.emit("secrets_asked", key=key_id, wait_s=wait_s)
        async with pool.transaction() as session:
            await sealed_columns.insert_request(session, request)
            await publish(session, ConfigChange(kind="secret_key", id=key_id))
        reason, ends_at = "no answer", clock.monotonic() + wait_s
        while clock.monotonic() < ends_at:
            if (reply := await sealed_columns.read_reply(pool, request.id)) is not None:
                try:
                    secrets = unseal(reply, request, private)
                except SecretUnreadable as error:
                    reason = error.code
                    break
                return ReceivedSecrets(
                    request_id=request.id, sent_by=reply.answered_by, secrets=secrets
                )
            await clock.sleep(POLL_INTERVAL_S, "secret_reply")
        await sealed_columns.delete_request(pool, request.id)
        self._env.emit("secrets_not_received", key=key_id, reason=reason)
        return None

    async def finish(self, session: DatabaseSession, received: ReceivedSecrets) -> None:
        """In the transaction in which the secrets were stored."""
        await sealed_columns.delete_request(session, received.request_id)
        detail = {"name": self._name, "sent_by": received.sent_by}
        await self._record(session, "server.receive_secrets", self._host_id, detail)

    async def answer(self, pool: Pool, keys: Sequence[str], secrets: SharedSecrets) -> None:
        """Answer the hosts that ask for what this process has: one of `keys`, by id."""
        for request in await sealed_columns.list_requests(pool):
            if request.key_id not in keys or (
                request.with_workspaces and secrets.workspaces is None
            ):
                continue
            sent = secrets
            if not request.with_workspaces:
                sent = SharedSecrets(keys=secrets.keys)
            try:
                reply = seal(sent, request, self._name)
            except SecretUnreadable as error:
                self._env.emit("secrets_not_sent", to=request.name, reason=error.code)
                continue
            async with pool.transaction() as session:
                is_first = await sealed_columns.answer_request(session, request.id, reply)
                if is_first:
                    detail = {"name": request.name, "sent_by": self._name}
                    await self._record(session, "server.send_secrets", request.host_id, detail)
            if is_first:
                self._env.emit("secrets_sent", to=request.name, host_id=request.host_id)

    async def _record(
        self, session: DatabaseSession, action: str, host_id: str, detail: dict[str, str]
    ) -> None:
        await audit.record(
            session,
            SystemActor(reason="chatd serve"),
            action=action,
            object_type="server",
            object_id=host_id,
            detail=detail,
        )

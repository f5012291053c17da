"""Send the deliveries of webhooks that are due, those to browsers among them.

Every replica may send: a claim in the database keeps two of them from sending one delivery at the
same time. A delivery is sent again if its sender dies or the answer is lost: receivers get each one
at least once.
"""

import asyncio
import errno
import socket
from typing import Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from chatd.aio import first_of
from chatd.domain.deployment.addresses import is_public
from chatd.domain.deployment.webhooks import (
    DeliveryReply,
    body_of,
    reason_to_disable,
    retry_delay_s,
    signed_headers,
)
from chatd.domain.errors import ChatdError
from chatd.domain.ports import Env
from chatd.sealed_secrets import KeyRing
from chatd.services.push import DeliveryRequest, PushRequests
from chatd.store import webhooks
from chatd.store.conn import Conn
from chatd.store.webhooks import SECRET_COLUMN, ClaimedDelivery

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
        headers = signed_headers(claimed.delivery, body, secret, now_s)
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

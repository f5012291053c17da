"""Ends of turns reach the receivers of webhooks, at least once and signed."""

import asyncio
import base64
import hashlib
import hmac
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Final
from uuid import UUID

import msgspec
import pytest
from aiohttp import web
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from chatd.domain.access.permissions import UserActor
from chatd.domain.deployment.webhooks import SubscriptionKeys, encode_secret
from chatd.domain.ids import UserId
from chatd.domain.tool_policy.rules import ToolRule
from chatd.sealed_secrets import KeyRing, SecretKey
from chatd.services.operation.runtime_settings import RuntimeSettings
from chatd.services.webhooks import PRIVATE_TEXT, PushRequests, WebhookSender
from chatd.store.account import answer_links
from chatd.store.database.conn import json_text
from chatd.store.database.notifications import ConfigChanges
from chatd.store.deployment import webhooks
from chatd.store.deployment.webhooks import SECRET_COLUMN
from tests.support.engine_rig import EngineRig, engine_rig
from tests.support.eventually import eventually
from tests.support.outcomes import present
from tests.support.providers.server import Gate
from tests.support.tools import GatedTool

KEY: Final = SecretKey(bytes(32))
RING: Final = KeyRing([KEY], KEY.id)
SECRET: Final = encode_secret(bytes(32))
ALL: Final = ("turn.finished", "turn.failed", "turn.interrupted", "turn.needs_action")


class Receiver:
    """Answers with the scripted statuses, then with 204."""

    def __init__(self) -> None:
        self.url = ""
        self.replies: list[int] = []
        self.got: list[tuple[dict[str, str], bytes]] = []

    async def handle(self, request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.got.append((headers, await request.read()))
        return web.Response(status=self.replies.pop(0) if self.replies else 204)

    def types(self) -> list[str]:
        return [msgspec.json.decode(body)["type"] for _, body in self.got]


@asynccontextmanager
async def receiver() -> AsyncGenerator[Receiver]:
    found = Receiver()
    app = web.Application()
    app.router.add_post("/hook", found.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    found.url = f"http://{host}:{port}/hook"
    try:
        yield found
    finally:
        await runner.cleanup()


@asynccontextmanager
async def sending(rig: EngineRig, *, allow_private: bool = True) -> AsyncGenerator[WebhookSender]:
    pushes = PushRequests(
        rig.pool,
        RING,
        rig.replica.env,
        contact="mailto:ops@example.com",
        summarize=rig.replica.titles.label_turn,
        allows_answer_links=RuntimeSettings(rig.pool, ConfigChanges()).allows_answer_links,
    )
    sender = WebhookSender(rig.pool, RING, rig.replica.env, pushes, allow_private=allow_private)
    rig.replica.on_turn_end = sender.on_turn_end
    async with asyncio.TaskGroup() as group:
        task = group.create_task(sender.run())
        yield sender
        task.cancel()


async def add_key(rig: EngineRig) -> None:
    await rig.pool.execute(
        "INSERT INTO secret_keys (id, check_value, state) VALUES ($1, '', 'current')"
        " ON CONFLICT DO NOTHING",
        KEY.id,
    )


async def add_webhook(
    rig: EngineRig,
    url: str,
    events: tuple[str, ...] = ALL,
    *,
    sender: WebhookSender | None = None,
) -> UUID:
    await add_key(rig)
    webhook_id = rig.replica.env.new_id()
    sealed = RING.seal(SECRET, SECRET_COLUMN.context(webhook_id))
    owner = UserActor(user_id=rig.owner, role="member")
    await webhooks.insert(rig.pool, owner, webhook_id, url=url, events=events, secret=sealed)
    if sender is not None:
        sender.wake()
    return webhook_id


async def until_got(receiver: Receiver, count: int) -> None:
    async def is_there() -> bool:
        return len(receiver.got) >= count

    await eventually(is_there)


async def until_recorded(rig: EngineRig, condition: str, count: int = 1) -> None:
    async def is_there() -> bool:
        rows = await rig.pool.fetch("SELECT * FROM webhook_deliveries d")
        return sum(bool(row[condition]) for row in rows) >= count

    await eventually(is_there)


@pytest.mark.promise("P1")
async def test_the_end_of_a_turn_is_delivered_with_a_valid_signature(dsn: str) -> None:
    async with receiver() as hook, engine_rig(dsn) as rig, sending(rig) as sender:
        await add_webhook(rig, hook.url, sender=sender)
        chat_id = await rig.ask("hi", "hello")
        await until_got(hook, 1)
        headers, body = hook.got[0]
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        digest = hmac.new(bytes(32), signed, hashlib.sha256).digest()
        assert headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"
        assert msgspec.json.decode(body)["data"]["chat_id"] == str(chat_id)
        assert hook.types() == ["turn.finished"]
        await until_recorded(rig, "delivered")


async def test_a_webhook_gets_only_the_events_that_it_named(dsn: str) -> None:
    async with receiver() as hook, engine_rig(dsn) as rig, sending(rig) as sender:
        await add_webhook(rig, hook.url, ("turn.failed",), sender=sender)
        chat_id = await rig.ask("hi", "hello")
        await rig.wait_chat_task_left(chat_id)
        assert await rig.pool.fetchval("SELECT count(*) FROM webhook_deliveries") == 0


async def test_a_refused_delivery_is_sent_again_with_the_same_id(dsn: str) -> None:
    async with receiver() as hook, engine_rig(dsn) as rig, sending(rig) as sender:
        hook.replies = [500]
        await add_webhook(rig, hook.url, sender=sender)
        await rig.ask("hi", "hello")
        await until_recorded(rig, "reply_status")
        webhook = (await rig.pool.fetch("SELECT * FROM webhooks"))[0]
        assert webhook["failing_since"] is not None
        await rig.pool.execute("UPDATE webhook_deliveries SET due_at = now()")
        sender.wake()
        await until_recorded(rig, "delivered")
        assert len({headers["webhook-id"] for headers, _ in hook.got}) == 1
        webhook = (await rig.pool.fetch("SELECT * FROM webhooks"))[0]
        assert webhook["failing_since"] is None


async def test_a_delivery_of_a_sender_that_died_is_sent_when_its_claim_ends(dsn: str) -> None:
    async with receiver() as hook, engine_rig(dsn) as rig:
        await add_webhook(rig, hook.url)
        chat_id = await rig.ask("hi", "hello")
        await rig.wait_chat_task_left(chat_id)
        claimed = await webhooks.claim(rig.pool, limit=9, per_webhook=2, claim_s=60)
        assert len(claimed) == 1
        assert await webhooks.claim(rig.pool, limit=9, per_webhook=2, claim_s=60) == []
        await rig.pool.execute("UPDATE webhook_deliveries SET due_at = now()")
        async with sending(rig):
            await until_got(hook, 1)


async def test_a_receiver_that_is_gone_disables_its_webhook(dsn: str) -> None:
    async with receiver() as hook, engine_rig(dsn) as rig, sending(rig) as sender:
        hook.replies = [410]
        webhook_id = await add_webhook(rig, hook.url, sender=sender)
        await rig.ask("hi", "hello")
        await until_recorded(rig, "ended_at")
        owner = UserActor(user_id=rig.owner, role="member")
        found = await webhooks.get(rig.pool, owner, webhook_id)
        assert found is not None
        assert (found.enabled, found.disabled_by) == (False, "The receiver answered 410 Gone.")


@pytest.mark.promise("P13")
@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "localhost", "[::1]", "169.254.169.254"),
        # Other ways to write 127.0.0.1.
        *("2130706433", "127.1", "0177.0.0.1", "0x7f000001", "[::ffff:127.0.0.1]"),
    ],
)
async def test_a_webhook_does_not_reach_this_host_or_a_private_network(dsn: str, host: str) -> None:
    async with (
        receiver() as hook,
        engine_rig(dsn) as rig,
        sending(rig, allow_private=False) as sender,
    ):
        port = hook.url.rpartition(":")[2]
        await add_webhook(rig, f"http://{host}:{port}", sender=sender)
        await rig.ask("hi", "hello")
        await until_recorded(rig, "failure")
        row = (await rig.pool.fetch("SELECT failure FROM webhook_deliveries"))[0]
        assert PRIVATE_TEXT in row["failure"]
        assert hook.got == []


@pytest.mark.promise("P12")
async def test_no_user_reads_or_changes_another_users_webhook(dsn: str) -> None:
    async with engine_rig(dsn) as rig:
        webhook_id = await add_webhook(rig, "https://example.com/hook")
        for role in ("member", "admin", "viewer"):
            stranger = UserActor(user_id=UserId(UUID(int=9)), role=role)
            assert await webhooks.get(rig.pool, stranger, webhook_id) is None
            assert await webhooks.list_own(rig.pool, stranger) == []
            assert not await webhooks.delete(rig.pool, stranger, webhook_id)
            assert await webhooks.insert_ping(rig.pool, stranger, webhook_id) is None
            changed = await webhooks.update(
                rig.pool, stranger, webhook_id, url="https://x.example", events=None, enabled=None
            )
            assert changed is None
            assert (
                await webhooks.list_deliveries(rig.pool, stranger, webhook_id, before=None, limit=9)
                == []
            )


@pytest.mark.promise("P1")
async def test_a_turn_ends_while_a_webhook_of_its_owner_is_deleted(dsn: str) -> None:
    async with receiver() as hook, engine_rig(dsn) as rig:
        webhook_id = await add_webhook(rig, hook.url)
        async with rig.pool.transaction() as session:
            await session.execute("DELETE FROM webhooks WHERE id = $1", webhook_id)
            chat_id = await rig.ask("hi", "hello")
            await rig.wait_state(chat_id, "W")
        assert await rig.pool.fetch("SELECT FROM webhook_deliveries") == []


async def test_what_was_due_while_a_webhook_was_disabled_is_not_delivered_later(dsn: str) -> None:
    async with engine_rig(dsn) as rig:
        webhook_id = await add_webhook(rig, "https://example.com/hook")
        chat_id = await rig.ask("hi", "hello")
        await rig.wait_chat_task_left(chat_id)
        owner = UserActor(user_id=rig.owner, role="member")
        for enabled in (False, True):
            await webhooks.update(
                rig.pool, owner, webhook_id, url=None, events=None, enabled=enabled
            )
        assert await webhooks.claim(rig.pool, limit=9, per_webhook=2, claim_s=60) == []
        (record,) = await webhooks.list_deliveries(
            rig.pool, owner, webhook_id, before=None, limit=9
        )
        assert record.row["failure"] == "The webhook was disabled."


async def test_deliveries_of_a_suspended_user_wait(dsn: str) -> None:
    async with engine_rig(dsn) as rig:
        await add_webhook(rig, "https://example.com/hook")
        chat_id = await rig.ask("hi", "hello")
        await rig.wait_chat_task_left(chat_id)
        for status, count in (("suspended", 0), ("active", 1)):
            await rig.pool.execute("UPDATE users SET status = $2 WHERE id = $1", rig.owner, status)
            claimed = await webhooks.claim(rig.pool, limit=9, per_webhook=2, claim_s=60)
            assert len(claimed) == count


class Browser:
    """Holds the keys of a subscription, and reads what was encrypted for them (RFC 8291)."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._auth = bytes(range(16))

    @property
    def keys(self) -> SubscriptionKeys:
        return SubscriptionKeys(p256dh=self._public(self._key.public_key()), auth=self._auth)

    def read(self, message: bytes) -> dict[str, str]:
        salt, sender, sealed = message[:16], message[21:86], message[86:]
        point = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), sender)
        info = b"WebPush: info\x00" + self.keys.p256dh + sender
        material = self._derive(self._auth, self._key.exchange(ec.ECDH(), point), info, 32)
        key = self._derive(salt, material, b"Content-Encoding: aes128gcm\x00", 16)
        nonce = self._derive(salt, material, b"Content-Encoding: nonce\x00", 12)
        return msgspec.json.decode(AESGCM(key).decrypt(nonce, sealed, None).removesuffix(b"\x02"))

    @staticmethod
    def _public(key: ec.EllipticCurvePublicKey) -> bytes:
        return key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)

    @staticmethod
    def _derive(salt: bytes, material: bytes, info: bytes, length: int) -> bytes:
        return HKDF(algorithm=SHA256(), length=length, salt=salt, info=info).derive(material)


async def subscribe(rig: EngineRig, url: str, browser: Browser, sender: WebhookSender) -> UUID:
    await add_key(rig)
    subscription_id = rig.replica.env.new_id()
    sealed = RING.seal(browser.keys.encode(), SECRET_COLUMN.context(subscription_id))
    owner = UserActor(user_id=rig.owner, role="member")
    await webhooks.subscribe(rig.pool, owner, subscription_id, endpoint=url, secret=sealed)
    sender.wake()
    return subscription_id


async def test_a_browser_is_told_of_the_end_of_a_turn_in_words_that_only_it_can_read(
    dsn: str,
) -> None:
    browser = Browser()
    async with receiver() as hook, engine_rig(dsn) as rig, sending(rig) as sender:
        await subscribe(rig, hook.url, browser, sender)
        chat_id = await rig.ask("hi", "hello there")
        await until_got(hook, 1)
        headers, body = hook.got[0]
        told = browser.read(body)
        assert (told["event"], told["body"]) == ("turn.finished", "hello there")
        assert told["url"] == f"/c/{chat_id}"
        assert headers["authorization"].startswith("vapid t=")
        assert headers["content-encoding"] == "aes128gcm"
        assert b"hello there" not in body


LONG = "I looked at every test and repaired what failed. " * 10


@pytest.mark.parametrize(
    ("reply", "body"),
    [
        ('{"label": "Fixed failing tests"}', "Fixed failing tests"),
        ("I have fixed the tests, as you asked me to do.", LONG[:159].rstrip() + "…"),
    ],
    ids=["a label", "no label: the beginning of the answer"],
)
async def test_a_browser_is_told_a_summary_of_a_long_answer(
    dsn: str, reply: str, body: str
) -> None:
    one, two = Browser(), Browser()
    async with receiver() as hook, engine_rig(dsn) as rig, sending(rig) as sender:
        await subscribe(rig, f"{hook.url}?1", one, sender)
        await subscribe(rig, f"{hook.url}?2", two, sender)
        rig.answer(LONG)
        rig.answer(reply)
        await rig.create("fix the tests")
        await until_got(hook, 2)
        told = {_read_any((one, two), message)["body"] for _, message in hook.got}
        assert told == {body}
        assert len(rig.api.requests) == 2
        kinds = [kind for kind, _, _ in await rig.recorded_usage()]
        assert kinds == ["turn", "summary"]


def _read_any(browsers: tuple[Browser, ...], message: bytes) -> dict[str, str]:
    for browser in browsers:
        with suppress(InvalidTag):
            return browser.read(message)
    raise AssertionError("No browser can read the message.")


async def test_while_queued_messages_go_on_webhooks_are_told_so_and_browsers_of_the_end_only(
    dsn: str,
) -> None:
    gate, browser = Gate(), Browser()
    async with (
        receiver() as hook,
        receiver() as vendor,
        engine_rig(dsn) as rig,
        sending(rig) as sender,
    ):
        await subscribe(rig, vendor.url, browser, sender)
        await add_webhook(rig, hook.url, sender=sender)
        rig.answer("one", gate)
        rig.answer("two")
        chat_id = await rig.create("first")
        await rig.wait_shown(chat_id, "one")
        await rig.send(chat_id, "second")
        gate.open()
        await until_got(hook, 2)
        await until_got(vendor, 1)
        ends = [msgspec.json.decode(body)["data"] for _, body in hook.got]
        more = [end.get("more", False) for end in sorted(ends, key=lambda end: end["version"])]
        assert more == [True, False]
        await until_recorded(rig, "ended_at", 3)
        assert [browser.read(body)["body"] for _, body in vendor.got] == ["two"]


async def test_a_subscription_that_the_browser_ended_gets_no_more_messages(dsn: str) -> None:
    async with receiver() as hook, engine_rig(dsn) as rig, sending(rig) as sender:
        hook.replies = [404]
        await subscribe(rig, hook.url, Browser(), sender)
        await rig.ask("hi", "hello")
        await until_got(hook, 1)
        await until_recorded(rig, "ended_at")
        owner = UserActor(user_id=rig.owner, role="member")
        (found,) = await webhooks.list_own_push(rig.pool, owner)
        assert (found.enabled, found.disabled_by) == (
            False,
            "The browser has ended its subscription.",
        )


async def test_replicas_that_begin_together_sign_with_one_key(dsn: str) -> None:
    async with engine_rig(dsn) as rig:
        await add_key(rig)
        env = rig.replica.env
        replicas = [PushRequests(rig.pool, RING, env, contact="mailto:a@b.example") for _ in "abc"]
        keys = await asyncio.gather(*(one.public_key() for one in replicas))
        assert len(set(keys)) == 1


async def test_a_turn_that_needs_a_person_says_what_for(dsn: str) -> None:
    tool = GatedTool()
    async with (
        receiver() as hook,
        engine_rig(dsn, tools=[tool]) as rig,
        sending(rig) as sender,
    ):
        await rig.set_policy(ToolRule(tool="echo", action="ask"))
        await add_webhook(rig, hook.url, ("turn.needs_action",), sender=sender)
        rig.call_tools(("c1", "echo", '{"command":"git push"}'))
        await rig.create("go")
        await until_got(hook, 1)
        data = msgspec.json.decode(hook.got[0][1])["data"]
        assert data["action"] == {
            "kinds": ["approval"],
            "calls": 1,
            "summary": "Approve: git push",
        }


@pytest.mark.promise("P13")
async def test_a_browser_is_told_which_call_waits_and_gets_a_link_only_if_the_settings_allow_it(
    dsn: str,
) -> None:
    browser, tool = Browser(), GatedTool()
    async with (
        receiver() as hook,
        engine_rig(dsn, tools=[tool]) as rig,
        sending(rig) as sender,
    ):
        await rig.set_policy(ToolRule(tool="echo", action="ask"))
        await subscribe(rig, hook.url, browser, sender)
        secret, chat_id = "", None
        told_as = {"git push": "git push", "TOKEN=SECRET git push": "TOKEN=[hidden] git push"}
        # A person must see all of what runs: a call with a hidden part has no link.
        rounds = ((False, "git push"), (True, "TOKEN=SECRET git push"), (True, "git push"))
        for number, (allowed, command) in enumerate(rounds, 1):
            await rig.pool.execute(
                "INSERT INTO deployment_settings (version, document) VALUES (1, $1::json)"
                " ON CONFLICT (one) DO UPDATE SET document = excluded.document",
                json_text({"answer_links": allowed}),
            )
            rig.call_tools((f"c{number}/é", "echo", f'{{"command":"{command}"}}'))
            chat_id = await rig.create("go")
            await until_got(hook, number)
            told = browser.read(hook.got[-1][1])
            assert told["body"] == f"Allow echo? {told_as[command]}"
            assert told["url"] == f"/c/{chat_id}?call=c{number}%2F%C3%A9"
            path, _, secret = told.get("answer", "").partition("#")
            has_link = allowed and command == "git push"
            assert (path, len(secret)) == (("/answer", 43) if has_link else ("", 0))
        found = present(await answer_links.find(rig.pool, secret))
        assert (found.link.chat_id, found.link.tool_call_id) == (chat_id, "c3/é")
        assert found.actor.user_id == rig.owner


async def test_a_subagent_that_needs_a_person_is_told_too(dsn: str) -> None:
    tool = GatedTool()
    async with (
        receiver() as hook,
        engine_rig(dsn, tools=[tool]) as rig,
        sending(rig) as sender,
    ):
        await rig.set_policy(ToolRule(tool="echo", action="ask"))
        await add_webhook(rig, hook.url, ("turn.needs_action",), sender=sender)
        root = await rig.ask("hi", "hello")
        await rig.wait_state(root, "W")
        rig.call_tools(("c1", "echo", "{}"))
        child = await rig.create("go", parent_chat_id=root, root_chat_id=root)
        await until_got(hook, 1)
        assert msgspec.json.decode(hook.got[0][1])["data"]["chat_id"] == str(child)

"""What administrators do with hooks: add, change, try and delete them. A new hook counts on every
replica as soon as it hears of the change; `engine/hooks.py` asks them."""

import secrets
from datetime import datetime
from typing import Annotated, Final
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from chatd.domain.access.permissions import Actor, require_permission
from chatd.domain.deployment.hooks import (
    DEFAULT_HOOK_TIMEOUT_MS,
    MAX_HOOK_NAME_CHARS,
    MAX_HOOK_TIMEOUT_MS,
    MIN_HOOK_TIMEOUT_MS,
    FailurePolicy,
    Hook,
    HookDecision,
    HookEvent,
)
from chatd.domain.deployment.webhooks import (
    MAX_URL_CHARS,
    SECRET_BYTES,
    decode_secret,
    encode_secret,
)
from chatd.domain.description import CREATED_AT, TEMPLATE_ID, UPDATED_AT, describe
from chatd.domain.errors import InvalidInput
from chatd.domain.ports import Env
from chatd.domain.workspace.entities import TemplateId
from chatd.engine.hooks import HookCaller
from chatd.sealed_secrets import KeyRing
from chatd.services.webhooks import check_webhook_url
from chatd.store.account.audit import ChangeAuthor
from chatd.store.database.pool import Pool
from chatd.store.deployment import hooks
from chatd.store.deployment.hooks import HOOK_SECRET, HookChanges, StoredHook

_ID: Final = "9d1c6a2e-52b3-4c0e-8f0a-6a1f3c0d2b77"
_URL: Final = "https://policy.example.com/chatd"
_EVENTS: Final = ["before_tool"]
_EVENTS_TEXT: Final = (
    "When it is asked: `turn_start` before the first model call, `before_tool` and `after_tool`"
    " around a tool call, `step` after each committed step, `turn_end` before the turn ends."
)
_FAILURE_TEXT: Final = (
    "What counts if it cannot be asked. `closed`: the call or the turn is refused. `open`: it goes"
    " on."
)
_TIMEOUT_TEXT: Final = "How long it may take to answer, in milliseconds."

HookName = Annotated[str, Meta(min_length=1, max_length=MAX_HOOK_NAME_CHARS, pattern=r"\S")]
HookUrl = Annotated[str, Meta(min_length=1, max_length=MAX_URL_CHARS)]
HookEvents = Annotated[tuple[HookEvent, ...], Meta(min_length=1, max_length=5)]
HookTimeout = Annotated[int, Meta(ge=MIN_HOOK_TIMEOUT_MS, le=MAX_HOOK_TIMEOUT_MS)]


class NewHookBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A hook to add."""

    name: Annotated[HookName, describe("Its name for people.", "Command policy")]
    url: Annotated[HookUrl, describe("Where it is asked, by POST.", _URL)]
    events: Annotated[HookEvents, describe(_EVENTS_TEXT, _EVENTS)]
    failure: Annotated[FailurePolicy, describe(_FAILURE_TEXT, "closed")] = "closed"
    timeout_ms: Annotated[HookTimeout, describe(_TIMEOUT_TEXT, DEFAULT_HOOK_TIMEOUT_MS)] = (
        DEFAULT_HOOK_TIMEOUT_MS
    )
    template_id: Annotated[
        TemplateId | None,
        describe(
            "Only chats with a workspace of this template ask it. Null: all chats.", TEMPLATE_ID
        ),
    ] = None
    enabled: Annotated[bool, Meta(description="Whether it is asked.", examples=[True])] = True
    secret: Annotated[
        str | None,
        describe(
            "The key of the signatures: `whsec_` and 24 to 64 bytes in base64. Without it one is"
            " generated.",
            None,
        ),
    ] = None


class HookPatch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to change of a hook. Fields that are not named stay."""

    name: Annotated[HookName | UnsetType, describe("Its name for people.", "Policy")] = UNSET
    url: Annotated[HookUrl | UnsetType, describe("Where it is asked.", _URL)] = UNSET
    events: Annotated[HookEvents | UnsetType, describe(_EVENTS_TEXT, _EVENTS)] = UNSET
    failure: Annotated[FailurePolicy | UnsetType, describe(_FAILURE_TEXT, "open")] = UNSET
    timeout_ms: Annotated[HookTimeout | UnsetType, describe(_TIMEOUT_TEXT, 2000)] = UNSET
    enabled: Annotated[
        bool | UnsetType, Meta(description="Whether it is asked.", examples=[False])
    ] = UNSET


class HookConfig(Struct, frozen=True, kw_only=True):
    """A hook, without its secret."""

    id: Annotated[UUID, describe("The hook's id.", _ID)]
    name: Annotated[str, describe("Its name for people.", "Command policy")]
    url: Annotated[str, describe("Where it is asked.", _URL)]
    events: Annotated[tuple[HookEvent, ...], describe(_EVENTS_TEXT, _EVENTS)]
    failure: Annotated[FailurePolicy, describe(_FAILURE_TEXT, "closed")]
    timeout_ms: Annotated[int, describe(_TIMEOUT_TEXT, DEFAULT_HOOK_TIMEOUT_MS)]
    template_id: Annotated[TemplateId | None, describe("Its template.", TEMPLATE_ID)]
    template_name: Annotated[str | None, describe("The name of its template.", "python")]
    enabled: Annotated[bool, Meta(description="Whether it is asked.", examples=[True])]
    created_at: Annotated[datetime, describe("When it was added.", CREATED_AT)]
    updated_at: Annotated[datetime, describe("When it was last changed.", UPDATED_AT)]


class NewHookConfig(HookConfig, frozen=True, kw_only=True):
    """A hook that was added, with its secret, which is shown only here."""

    secret: Annotated[
        str,
        describe(
            "The key of the signatures.", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw4n9cBfXrRwk="
        ),
    ]


class HookTrial(Struct, frozen=True, kw_only=True):
    """What a hook answered to a test, an event of the type `ping` without data."""

    ok: Annotated[bool, Meta(description="Whether its answer can be read.", examples=[True])]
    decision: Annotated[HookDecision | None, describe("Its decision, if any.", None)] = None
    reason: Annotated[str, describe("Its reason, or why there is no answer.", "")] = ""
    duration_ms: Annotated[int, describe("How long it took, in milliseconds.", 41)]


class HookAdministration:
    def __init__(self, pool: Pool, ring: KeyRing, env: Env, *, allow_private: bool) -> None:
        self._pool = pool
        self._ring = ring
        self._env = env
        self._caller = HookCaller(ring, env, allow_private=allow_private)

    async def add(self, by: ChangeAuthor, body: NewHookBody) -> NewHookConfig:
        """Raises Forbidden, InvalidInput, Conflict, SecretKeyMissing."""
        require_permission(by.actor, "config.write")
        if body.secret is not None:
            decode_secret(body.secret)
        secret = body.secret or encode_secret(secrets.token_bytes(SECRET_BYTES))
        hook = Hook(
            id=self._env.new_id(),
            name=_checked_name(body.name),
            url=check_webhook_url(body.url),
            events=tuple(dict.fromkeys(body.events)),
            failure=body.failure,
            timeout_ms=body.timeout_ms,
            template_id=body.template_id,
            enabled=body.enabled,
        )
        sealed = self._ring.seal(secret, HOOK_SECRET.context(hook.id))
        async with self._pool.transaction() as session:
            made = await hooks.insert(session, by.actor, hook, sealed, ip=by.ip)
        return NewHookConfig(**msgspec.structs.asdict(hook_config(made)), secret=secret)

    async def update(self, by: ChangeAuthor, hook_id: UUID, body: HookPatch) -> HookConfig:
        """Raises Forbidden, NotFound, InvalidInput, Conflict."""
        given = {
            name: value
            for name in body.__struct_fields__
            if (value := getattr(body, name)) is not UNSET
        }
        changes = HookChanges(**given)
        if changes.name is not None:
            changes = msgspec.structs.replace(changes, name=_checked_name(changes.name))
        if changes.url is not None:
            check_webhook_url(changes.url)
        if changes.events is not None:
            events = tuple(dict.fromkeys(changes.events))
            changes = msgspec.structs.replace(changes, events=events)
        async with self._pool.transaction() as session:
            return hook_config(await hooks.update(session, by.actor, hook_id, changes, ip=by.ip))

    async def delete(self, by: ChangeAuthor, hook_id: UUID) -> None:
        """Raises Forbidden, NotFound."""
        async with self._pool.transaction() as session:
            await hooks.delete(session, by.actor, hook_id, ip=by.ip)

    async def try_hook(self, actor: Actor, hook_id: UUID) -> HookTrial:
        """Raises Forbidden, NotFound."""
        require_permission(actor, "config.write")
        loaded = await hooks.load_one(self._pool, actor, hook_id)
        began = self._env.clock.monotonic()
        body = msgspec.json.encode({"type": "ping", "data": {}})
        name = f"hook_{self._env.new_id().hex}"
        answer = await self._caller.ask(loaded, "before_tool", name, body)
        duration_ms = round((self._env.clock.monotonic() - began) * 1000)
        if isinstance(answer, str):
            return HookTrial(ok=False, reason=answer, duration_ms=duration_ms)
        return HookTrial(
            ok=True, decision=answer.decision, reason=answer.reason, duration_ms=duration_ms
        )


def _checked_name(name: str) -> str:
    if not name.strip() or not name.isprintable():
        raise InvalidInput("name", "must have printable characters only")
    return name.strip()


def hook_config(stored: StoredHook) -> HookConfig:
    hook = stored.hook
    return HookConfig(
        id=hook.id,
        name=hook.name,
        url=hook.url,
        events=hook.events,
        failure=hook.failure,
        timeout_ms=hook.timeout_ms,
        template_id=hook.template_id,
        template_name=stored.template_name,
        enabled=hook.enabled,
        created_at=stored.created_at,
        updated_at=stored.updated_at,
    )

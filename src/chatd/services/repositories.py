"""What administrators do with connections to repositories, and how deliveries of git hosts come in.

A delivery is checked, read and stored before it is answered; `services/repository_worker.py` acts
upon it.
"""

import secrets
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Annotated, Final
from urllib.parse import urlsplit
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from chatd.domain.access.permissions import Actor, require_permission
from chatd.domain.deployment.repositories import (
    DEFAULT_CHECK_ROUNDS,
    MAX_ALLOWED_LOGINS,
    MAX_CHECK_ROUNDS,
    MAX_CONNECTION_NAME_CHARS,
    MAX_LOGIN_CHARS,
    MAX_PATTERN_CHARS,
    MAX_PATTERNS,
    EventOutcome,
    HostEvent,
    RepositoryConnection,
    is_mention,
    is_pattern,
    reason_to_ignore,
)
from chatd.domain.deployment.webhooks import MAX_URL_CHARS, SECRET_PREFIX, decode_secret
from chatd.domain.description import (
    CHAT_ID,
    CREATED_AT,
    MODEL_ID,
    TEMPLATE_ID,
    UPDATED_AT,
    USER_ID,
    describe,
)
from chatd.domain.errors import ChatdError, Forbidden, InvalidInput, NotFound
from chatd.domain.ids import ModelConfigId, UserId
from chatd.domain.ports import Env
from chatd.domain.workspace.entities import TemplateId
from chatd.domain.workspace.host_credentials import MAX_SECRET_CHARS, MIN_SECRET_CHARS
from chatd.domain.workspace.network import NetworkTarget, find_rule
from chatd.domain.workspace.pull_requests import GitHostKind
from chatd.git_hosts import gitea, github, gitlab
from chatd.git_hosts.github_app import load_key
from chatd.git_hosts.host_api import HostCallFailed
from chatd.git_hosts.host_apis import HostApis
from chatd.git_hosts.signatures import delivery_id, event_name, is_authentic
from chatd.sealed_secrets import KeyRing
from chatd.store.account.audit import ChangeAuthor
from chatd.store.database.pool import Pool
from chatd.store.deployment import repositories, repository_work
from chatd.store.deployment.repositories import (
    REPOSITORY_KEY,
    REPOSITORY_SECRET,
    REPOSITORY_TOKEN,
    StoredConnection,
)
from chatd.store.deployment.repository_work import StoredEvent
from chatd.store.workspace import templates
from chatd.workspaces.network.workspace_networks import policy_rules

REPOSITORY_PARAMETER: Final = "repository"
"""The parameter of a template that gets the address to clone."""
REF_PARAMETER: Final = "ref"
"""The parameter that gets the branch of a pull request, if the template has it."""
SECRET_BYTES: Final = 32
MAX_PRIVATE_KEY_CHARS: Final = 16_384
"""A key with 4,096 bits has 3,300."""
_PEM: Final = "-----BEGIN RSA PRIVATE KEY-----\n..."
_ID: Final = "2b7f0f5e-3a41-4f0b-9c55-8d4f0e2a6b19"
_SITES: Final[Mapping[GitHostKind, str]] = {
    "github": "https://github.com",
    "gitlab": "https://gitlab.com",
    "gitea": "https://codeberg.org",
}
_READERS: Final[Mapping[GitHostKind, Callable[[str, bytes], HostEvent | None]]] = {
    "github": github.read_event,
    "gitlab": gitlab.read_event,
    "gitea": gitea.read_event,
}

Name = Annotated[str, Meta(min_length=1, max_length=MAX_CONNECTION_NAME_CHARS, pattern=r"\S")]
Url = Annotated[str, Meta(min_length=1, max_length=MAX_URL_CHARS)]
Pattern = Annotated[str, Meta(min_length=1, max_length=MAX_PATTERN_CHARS)]
Patterns = Annotated[tuple[Pattern, ...], Meta(min_length=1, max_length=MAX_PATTERNS)]
Mention = Annotated[str, Meta(min_length=1, max_length=39)]
Label = Annotated[str, Meta(max_length=100)]
Login = Annotated[str, Meta(min_length=1, max_length=MAX_LOGIN_CHARS)]
Logins = Annotated[tuple[Login, ...], Meta(max_length=MAX_ALLOWED_LOGINS)]
Rounds = Annotated[int, Meta(ge=0, le=MAX_CHECK_ROUNDS)]
HostToken = Annotated[
    str, Meta(min_length=MIN_SECRET_CHARS, max_length=MAX_SECRET_CHARS, pattern=r"^[!-~]+$")
]
AppId = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9.]+$")]
PrivateKey = Annotated[str, Meta(min_length=1, max_length=MAX_PRIVATE_KEY_CHARS)]
EventSecret = Annotated[str, Meta(min_length=16, max_length=200, pattern=r"^[!-~]+$")]

_PATTERNS_TEXT: Final = (
    "The repositories that count: `owner/name`, or `owner/*` for all of an owner or group."
)
_MENTION_TEXT: Final = (
    "The name that people mention: `@name` in a comment, or `/name` at its beginning."
)
_LABEL_TEXT: Final = "The label that starts a chat. Empty: none does."
_TEMPLATE_TEXT: Final = (
    "The template of the workspaces. It must have the parameter `repository`, and a network that"
    " allows the host."
)
_USER_TEXT: Final = "The user to whom the chats and their cost belong. Null: you."
_ALLOWED_TEXT: Final = (
    "The accounts of the git host that may ask; they need write access too. Empty: everyone with"
    " write access."
)
_ROUNDS_TEXT: Final = "How often failed checks of one pull request are sent back; 0: never."
_TOKEN_TEXT: Final = (
    "The token for the host's API and for git. It stays outside the workspaces and is never shown."
)
_APP_TEXT: Final = (
    "An App of GitHub, instead of a token. chatd asks GitHub for tokens of its installations, each"
    " for one repository, and keeps them in memory only."
)
_APP_ID_TEXT: Final = "The App's id, or its client id."
_SECRET_TEXT: Final = (
    "The secret of the webhook. Without it one is generated. A secret of GitLab that begins with"
    " `whsec_` demands its signature; else its token header is compared."
)


class AppBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An App of GitHub."""

    id: Annotated[AppId, describe(_APP_ID_TEXT, "123456")]
    private_key: Annotated[
        PrivateKey, describe("Its private key, the PEM text. It is never shown again.", _PEM)
    ]

    def __repr__(self) -> str:
        """Without the key."""
        return f"AppBody(id={self.id!r})"


class NewConnectionBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A connection to add, with a token or an App."""

    name: Annotated[Name, describe("Its name for people.", "Our GitHub")]
    vendor: Annotated[GitHostKind, describe("The software of the host.", "github")]
    url: Annotated[
        Url | None,
        describe(
            "The address of the host's pages. Null: github.com, gitlab.com or codeberg.org.",
            "https://git.example.com",
        ),
    ] = None
    repositories: Annotated[Patterns, describe(_PATTERNS_TEXT, ["acme/*"])]
    mention: Annotated[Mention, describe(_MENTION_TEXT, "chatd")] = "chatd"
    label: Annotated[Label, describe(_LABEL_TEXT, "chatd")] = ""
    template_id: Annotated[TemplateId, describe(_TEMPLATE_TEXT, TEMPLATE_ID)]
    model_id: Annotated[
        ModelConfigId | None, describe("The model of the chats. Null: the default.", MODEL_ID)
    ] = None
    user_id: Annotated[UserId | None, describe(_USER_TEXT, USER_ID)] = None
    allowed: Annotated[Logins, describe(_ALLOWED_TEXT, ["ada"])] = ()
    check_rounds: Annotated[Rounds, describe(_ROUNDS_TEXT, DEFAULT_CHECK_ROUNDS)] = (
        DEFAULT_CHECK_ROUNDS
    )
    enabled: Annotated[bool, Meta(description="Whether events start chats.", examples=[True])] = (
        True
    )
    token: Annotated[HostToken | None, describe(_TOKEN_TEXT, "github_pat_A1b2C3d4")] = None
    app: Annotated[AppBody | None, describe(_APP_TEXT, None)] = None
    secret: Annotated[EventSecret | None, describe(_SECRET_TEXT, None)] = None

    def __repr__(self) -> str:
        """Without the secrets."""
        return f"NewConnectionBody(name={self.name!r})"


class ConnectionPatch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to change of a connection. Fields that are not named stay; vendor and address do."""

    name: Annotated[Name | UnsetType, describe("Its name for people.", "GitHub")] = UNSET
    repositories: Annotated[Patterns | UnsetType, describe(_PATTERNS_TEXT, ["acme/app"])] = UNSET
    mention: Annotated[Mention | UnsetType, describe(_MENTION_TEXT, "chatd")] = UNSET
    label: Annotated[Label | UnsetType, describe(_LABEL_TEXT, "chatd")] = UNSET
    template_id: Annotated[TemplateId | UnsetType, describe(_TEMPLATE_TEXT, TEMPLATE_ID)] = UNSET
    model_id: Annotated[
        ModelConfigId | UnsetType | None,
        describe("The model of the chats. Null: the default.", MODEL_ID),
    ] = UNSET
    user_id: Annotated[UserId | UnsetType, describe("Whose chats they are.", USER_ID)] = UNSET
    allowed: Annotated[Logins | UnsetType, describe(_ALLOWED_TEXT, [])] = UNSET
    check_rounds: Annotated[Rounds | UnsetType, describe(_ROUNDS_TEXT, 1)] = UNSET
    enabled: Annotated[
        bool | UnsetType, Meta(description="Whether events start chats.", examples=[False])
    ] = UNSET
    token: Annotated[HostToken | UnsetType, describe(_TOKEN_TEXT, "github_pat_A1b2C3d4")] = UNSET
    app: Annotated[AppBody | UnsetType, Meta(description=f"{_APP_TEXT} Or another key.")] = UNSET
    secret: Annotated[EventSecret | UnsetType, describe("Another secret.", "s" * 32)] = UNSET

    def __repr__(self) -> str:
        return "ConnectionPatch()"


class ConnectionConfig(Struct, frozen=True, kw_only=True):
    """A connection, without its secrets."""

    id: Annotated[UUID, describe("The connection's id.", _ID)]
    name: Annotated[str, describe("Its name for people.", "Our GitHub")]
    vendor: Annotated[GitHostKind, describe("The software of the host.", "github")]
    url: Annotated[str, describe("The address of the host's pages.", "https://github.com")]
    events_path: Annotated[
        str,
        describe(
            "The path of this server to which the host delivers its events.",
            f"/api/v1/repository-connections/{_ID}/events",
        ),
    ]
    repositories: Annotated[tuple[str, ...], describe(_PATTERNS_TEXT, ["acme/*"])]
    mention: Annotated[str, describe(_MENTION_TEXT, "chatd")]
    label: Annotated[str, describe(_LABEL_TEXT, "chatd")]
    template_id: Annotated[TemplateId, describe("Its template.", TEMPLATE_ID)]
    template_name: Annotated[str, describe("The name of its template.", "app")]
    model_id: Annotated[ModelConfigId | None, describe("The model of the chats.", MODEL_ID)]
    user_id: Annotated[UserId, describe("Whose chats they are.", USER_ID)]
    username: Annotated[str, describe("The name of that user.", "ci")]
    allowed: Annotated[tuple[str, ...], describe(_ALLOWED_TEXT, ["ada"])]
    check_rounds: Annotated[int, describe(_ROUNDS_TEXT, DEFAULT_CHECK_ROUNDS)]
    enabled: Annotated[bool, Meta(description="Whether events start chats.", examples=[True])]
    app_id: Annotated[
        str | None, describe(f"{_APP_ID_TEXT} Null: the connection has a token.", "123456")
    ]
    problem: Annotated[
        str | None,
        describe("Why the host refused the token or the App when it was last used.", None),
    ]
    created_at: Annotated[datetime, describe("When it was added.", CREATED_AT)]
    updated_at: Annotated[datetime, describe("When it was last changed.", UPDATED_AT)]


class NewConnectionConfig(ConnectionConfig, frozen=True, kw_only=True):
    """A connection that was added, with the secret of its webhook, which is shown only here."""

    secret: Annotated[str, describe("The secret of the webhook.", "TWFuIGlzIGRpc3Rpbmd1aXNoZWQ")]


class ConnectionTrial(Struct, frozen=True, kw_only=True):
    """What the host answered to the token, or to the App."""

    ok: Annotated[bool, Meta(description="Whether the host accepts it.", examples=[True])]
    login: Annotated[str, describe("The account as which chatd acts.", "chatd-bot")] = ""
    reason: Annotated[str, describe("Why not.", "")] = ""


class EventRecord(Struct, frozen=True, kw_only=True):
    """An event that a host delivered."""

    id: Annotated[int, describe("Its number.", 41)]
    delivery_id: Annotated[
        str, describe("The host's id of the delivery.", "72d3162e-cc78-11e3-81ab-4c9367dc0958")
    ]
    kind: Annotated[str, describe("`comment`, `opened`, `labeled` or `checks_failed`.", "comment")]
    repository: Annotated[str, describe("The repository.", "acme/app")]
    number: Annotated[int, describe("Of the issue or pull request; 0: of checks.", 12)]
    sender: Annotated[str, describe("The account of the host that caused it.", "ada")]
    outcome: Annotated[
        EventOutcome,
        describe("`waiting`: it is to be done, perhaps again.", "done"),
    ]
    detail: Annotated[str, describe("Why it was ignored, or what failed last.", "")]
    attempts: Annotated[int, describe("How often it was tried.", 1)]
    chat_id: Annotated[UUID | None, describe("The chat.", CHAT_ID)]
    created_at: Annotated[datetime, describe("When it arrived.", CREATED_AT)]
    next_attempt_at: Annotated[
        datetime | None, describe("When it is tried next. Null: it has ended.", None)
    ]


class DeliveryReceipt(Struct, frozen=True, kw_only=True):
    """What becomes of a delivery."""

    stored: Annotated[bool, Meta(description="Whether it starts something.", examples=[True])]
    reason: Annotated[str, describe("Why not.", "")] = ""


class DeliveryRefused(Forbidden):
    """The signature of a delivery is wrong."""

    code = "signature_invalid"


class TooManyEvents(ChatdError):
    code = "too_many_events"


class RepositoryConnections:
    """`wake` is called when there is an event to act upon."""

    def __init__(
        self,
        pool: Pool,
        ring: KeyRing,
        env: Env,
        find_model: Callable[[ModelConfigId], Awaitable[object | None]],
        apis: HostApis,
        *,
        wake: Callable[[], None],
    ) -> None:
        self._pool = pool
        self._ring = ring
        self._env = env
        self._find_model = find_model
        self._apis = apis
        self._wake = wake

    async def add(self, by: ChangeAuthor, body: NewConnectionBody) -> NewConnectionConfig:
        """Raises Forbidden, InvalidInput, Conflict, SecretKeyMissing."""
        require_permission(by.actor, "config.write")
        _check_secret(body.secret)
        if body.token is None and body.app is None:
            raise InvalidInput("token", "give a token or an App")
        app_id = _check_app(body.vendor, body.token, body.app)
        user_id = body.user_id or getattr(by.actor, "user_id", None)
        if user_id is None:
            raise InvalidInput("user_id", "must name the user to whom the chats belong")
        new = RepositoryConnection(
            id=self._env.new_id(),
            name=body.name.strip(),
            vendor=body.vendor,
            url=self._checked_url(body.url or _SITES[body.vendor]),
            repositories=body.repositories,
            mention=body.mention,
            label=body.label.strip(),
            template_id=body.template_id,
            model_config_id=body.model_id,
            user_id=user_id,
            allowed=body.allowed,
            check_rounds=body.check_rounds,
            enabled=body.enabled,
            app_id=app_id,
        )
        await self._check(new)
        secret = body.secret or secrets.token_urlsafe(SECRET_BYTES)
        async with self._pool.transaction() as session:
            made = await repositories.insert(
                session,
                by.actor,
                new,
                sealed_secret=self._ring.seal(secret, REPOSITORY_SECRET.context(new.id)),
                sealed_token=self._seal_token(new.id, body.token),
                sealed_key=self._seal_key(new.id, body.app),
                ip=by.ip,
            )
        shown = msgspec.structs.asdict(connection_config(made))
        return NewConnectionConfig(**shown, secret=secret)

    async def update(
        self, by: ChangeAuthor, connection_id: UUID, body: ConnectionPatch
    ) -> ConnectionConfig:
        """Raises Forbidden, NotFound, InvalidInput, Conflict, SecretKeyMissing."""
        require_permission(by.actor, "config.write")
        known = await repositories.get(self._pool, by.actor, connection_id)
        given = {
            "model_config_id" if name == "model_id" else name: value
            for name in body.__struct_fields__
            if name not in ("token", "app", "secret")
            and (value := getattr(body, name)) is not UNSET
        }
        changed = msgspec.structs.replace(known.connection, **given)
        changed = msgspec.structs.replace(changed, name=changed.name.strip())
        await self._check(changed)
        token = body.token if isinstance(body.token, str) else None
        app = body.app if isinstance(body.app, AppBody) else None
        if token is not None or app is not None:
            app_id = _check_app(changed.vendor, token, app)
            changed = msgspec.structs.replace(changed, app_id=app_id)
        secret = None
        if isinstance(body.secret, str):
            _check_secret(body.secret)
            secret = self._ring.seal(body.secret, REPOSITORY_SECRET.context(connection_id))
        async with self._pool.transaction() as session:
            stored = await repositories.update(
                session,
                by.actor,
                changed,
                sealed_secret=secret,
                sealed_token=self._seal_token(connection_id, token),
                sealed_key=self._seal_key(connection_id, app),
                ip=by.ip,
            )
        self._wake()
        return connection_config(stored)

    async def delete(self, by: ChangeAuthor, connection_id: UUID) -> None:
        """Raises Forbidden, NotFound."""
        async with self._pool.transaction() as session:
            await repositories.delete(session, by.actor, connection_id, ip=by.ip)

    async def try_connection(self, actor: Actor, connection_id: UUID) -> ConnectionTrial:
        """Ask the host as whom chatd acts. Raises Forbidden, NotFound, SecretUnreadable."""
        require_permission(actor, "config.write")
        found = await repositories.open_connection(self._pool, connection_id)
        if found is None:
            raise NotFound("There is no such connection to a repository.")
        try:
            login = await self._apis.check(found)
        except HostCallFailed as error:
            if error.reason == "refused":
                await repositories.set_problem(self._pool, connection_id, error.message)
            return ConnectionTrial(ok=False, reason=error.message)
        await repositories.set_problem(self._pool, connection_id, None)
        return ConnectionTrial(ok=True, login=login)

    async def receive(
        self, connection_id: UUID, headers: Mapping[str, str], body: bytes
    ) -> DeliveryReceipt:
        """Raises NotFound, DeliveryRefused, TooManyEvents, InvalidInput, Unavailable."""
        found = await repositories.open_connection(self._pool, connection_id)
        if found is None or not found.connection.enabled:
            raise NotFound("There is no such connection to a repository.")
        one, now = found.connection, self._env.clock.now()
        secret = self._ring.open(found.sealed_secret, REPOSITORY_SECRET.context(one.id))
        if not is_authentic(one.vendor, headers, body, secret, now.timestamp()):
            self._env.emit("repository_delivery_refused", connection_id=one.id)
            raise DeliveryRefused("The signature is wrong: check the secret of the webhook.")
        try:
            event = _READERS[one.vendor](event_name(one.vendor, headers), body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise InvalidInput("body", "is not an event of this host") from None
        if event is None:
            return _ignored("not an event that starts anything")
        if (reason := reason_to_ignore(one, event, now)) is not None:
            return _ignored(reason)
        name = delivery_id(one.vendor, headers)
        stored = await repository_work.store_event(self._pool, one.id, name, event)
        if stored == "full":
            self._env.emit("repository_events_full", connection_id=one.id)
            raise TooManyEvents("Too many events wait. Deliver this one again later.")
        if stored == "known":
            return _ignored("this event is known")
        self._wake()
        return DeliveryReceipt(stored=True)

    def _seal_token(self, connection_id: UUID, token: str | None) -> str | None:
        if token is None:
            return None
        return self._ring.seal(token, REPOSITORY_TOKEN.context(connection_id))

    def _seal_key(self, connection_id: UUID, app: AppBody | None) -> str | None:
        if app is None:
            return None
        return self._ring.seal(app.private_key, REPOSITORY_KEY.context(connection_id))

    def _checked_url(self, url: str) -> str:
        text = url.strip().rstrip("/")
        try:
            pieces = urlsplit(text)
            has_host, _ = bool(pieces.hostname), pieces.port
        except ValueError:
            raise InvalidInput("url", "is not a valid URL") from None
        schemes = ("https", "http") if self._apis.allow_private else ("https",)
        if pieces.scheme not in schemes or not has_host:
            raise InvalidInput("url", "must be an absolute https URL")
        if pieces.username is not None or pieces.query or pieces.fragment or "@" in text:
            raise InvalidInput("url", "must be the address of the host only")
        if not text.isascii() or not text.isprintable() or " " in text:
            raise InvalidInput("url", "must be printable ASCII without spaces")
        return text

    async def _check(self, one: RepositoryConnection) -> None:
        """Raises InvalidInput."""
        if not one.name or not one.name.isprintable():
            raise InvalidInput("name", "must have printable characters only")
        for number, pattern in enumerate(one.repositories):
            if not is_pattern(pattern):
                raise InvalidInput(f"repositories[{number}]", "must be owner/name or owner/*")
        if not is_mention(one.mention):
            raise InvalidInput("mention", "must be letters, digits, - and _")
        if not one.label.isprintable():
            raise InvalidInput("label", "must have printable characters only")
        if one.model_config_id is not None and await self._find_model(one.model_config_id) is None:
            raise InvalidInput("model_id", "there is no such model")
        await self._check_template(one)

    async def _check_template(self, one: RepositoryConnection) -> None:
        template = await templates.get(self._pool, one.template_id)
        if template is None or template.deleted:
            raise InvalidInput("template_id", "there is no such template")
        version = await templates.get_version(self._pool, template.active_version_id)
        names = () if version is None else [each.name for each in version.parameters]
        if version is None or REPOSITORY_PARAMETER not in names:
            text = f"the template must have the parameter {REPOSITORY_PARAMETER!r}"
            raise InvalidInput("template_id", text)
        host, _, port = one.host.partition(":")
        target = NetworkTarget(host=host, port=int(port or 443))
        rules = policy_rules(version.spec.allow).rules
        if version.spec.network != "allow" or find_rule(rules, target) is None:
            text = (
                f'the template must have network = "allow" and allow {one.host}: only so the'
                " token stays outside the workspace"
            )
            raise InvalidInput("template_id", text)


def _ignored(reason: str) -> DeliveryReceipt:
    return DeliveryReceipt(stored=False, reason=reason)


def _check_app(vendor: GitHostKind, token: str | None, app: AppBody | None) -> str | None:
    """Its id. Raises InvalidInput."""
    if app is None:
        return None
    if token is not None:
        raise InvalidInput("app", "give a token or an App, not both")
    if vendor != "github":
        raise InvalidInput("app", "only GitHub has Apps: give a token")
    try:
        load_key(app.private_key)
    except ValueError as error:
        raise InvalidInput("app.private_key", str(error)) from None
    return app.id


def _check_secret(secret: str | None) -> None:
    """Raises InvalidInput."""
    if secret is not None and secret.startswith(SECRET_PREFIX):
        decode_secret(secret)


def connection_config(stored: StoredConnection) -> ConnectionConfig:
    one = stored.connection
    return ConnectionConfig(
        id=one.id,
        name=one.name,
        vendor=one.vendor,
        url=one.url,
        events_path=f"/api/v1/repository-connections/{one.id}/events",
        repositories=one.repositories,
        mention=one.mention,
        label=one.label,
        template_id=one.template_id,
        template_name=stored.template_name,
        model_id=one.model_config_id,
        user_id=one.user_id,
        username=stored.username,
        allowed=one.allowed,
        check_rounds=one.check_rounds,
        enabled=one.enabled,
        app_id=one.app_id,
        problem=one.problem,
        created_at=stored.created_at,
        updated_at=stored.updated_at,
    )


def event_record(stored: StoredEvent) -> EventRecord:
    event = stored.event
    return EventRecord(
        id=stored.id,
        delivery_id=stored.delivery_id,
        kind=event.kind,
        repository=event.repository,
        number=event.number,
        sender=event.sender,
        outcome=stored.outcome,
        detail=stored.detail,
        attempts=stored.attempts,
        chat_id=stored.chat_id,
        created_at=stored.created_at,
        next_attempt_at=stored.due_at,
    )

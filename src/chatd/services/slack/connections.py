"""What administrators do with connections to Slack, and how users link their person of Slack."""

import base64
import secrets
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated, Final
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from chatd.domain.access.permissions import Actor, UserActor, require_permission
from chatd.domain.deployment.repositories import EventOutcome
from chatd.domain.deployment.slack import MAX_CONNECTION_NAME_CHARS, SlackConnection
from chatd.domain.description import (
    CHAT_ID,
    CREATED_AT,
    MODEL_ID,
    TEMPLATE_ID,
    UPDATED_AT,
    describe,
)
from chatd.domain.errors import Forbidden, InvalidInput, NotFound
from chatd.domain.ids import ModelConfigId, ProjectId
from chatd.domain.ports import Env
from chatd.domain.workspace.entities import TemplateId
from chatd.sealed_secrets import KeyRing
from chatd.services.slack.slack_api import SlackCallFailed, SlackRequests
from chatd.services.slack.slack_socket import open_api, refuse_twin
from chatd.store.account.audit import ChangeAuthor
from chatd.store.database.pool import Pool
from chatd.store.deployment import slack
from chatd.store.deployment.slack import SLACK_APP_TOKEN, SLACK_BOT_TOKEN, SlackLink, StoredSlack
from chatd.store.deployment.slack_work import StoredSlackEvent
from chatd.store.workspace import templates

CODE_BYTES: Final = 16
_ID: Final = "7f6f6d0c-51a1-4f7f-9b2f-1b6f0c9d2e11"
_PROJECT: Final = "5a1b7f5e-3a41-4f0b-9c55-8d4f0e2a6b19"

Name = Annotated[str, Meta(min_length=1, max_length=MAX_CONNECTION_NAME_CHARS, pattern=r"\S")]
BotToken = Annotated[str, Meta(max_length=500, pattern=r"^xoxb-[A-Za-z0-9-]{8,}$")]
AppToken = Annotated[str, Meta(max_length=500, pattern=r"^xapp-[A-Za-z0-9-]{8,}$")]

_TEMPLATE_TEXT: Final = (
    "The template of the chats' workspaces. The users must be allowed to use it. Null: the chats"
    " begin without a workspace."
)
_PROJECT_TEXT: Final = "The project of the chats. The users must be editors of it. Null: none."
_EMAIL_TEXT: Final = (
    "Whether a person of Slack whose email Slack has confirmed is the user with this email. Else"
    " each user links the person by a code."
)
_BOT_TEXT: Final = "The bot token of the app, `xoxb-`. It is stored sealed and never shown."
_APP_TEXT: Final = "The app-level token with the scope `connections:write`, `xapp-`."
_ENABLED_TEXT: Final = "Whether chatd connects to Slack."


class NewSlackBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A workspace of Slack to connect."""

    name: Annotated[Name, describe("Its name for people.", "Acme")]
    bot_token: Annotated[BotToken, describe(_BOT_TEXT, "xoxb-1234-5678-AbCdEf")]
    app_token: Annotated[AppToken, describe(_APP_TEXT, "xapp-1-A012-3456-abcdef")]
    template_id: Annotated[TemplateId | None, describe(_TEMPLATE_TEXT, TEMPLATE_ID)] = None
    project_id: Annotated[ProjectId | None, describe(_PROJECT_TEXT, _PROJECT)] = None
    model_id: Annotated[
        ModelConfigId | None, describe("The model of the chats. Null: the default.", MODEL_ID)
    ] = None
    match_email: Annotated[bool, Meta(description=_EMAIL_TEXT, examples=[False])] = False
    enabled: Annotated[bool, Meta(description=_ENABLED_TEXT, examples=[True])] = True

    def __repr__(self) -> str:
        """Without the tokens."""
        return f"NewSlackBody(name={self.name!r})"


class SlackPatch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to change of a connection. Fields that are not named stay."""

    name: Annotated[Name | UnsetType, describe("Its name for people.", "Acme")] = UNSET
    bot_token: Annotated[BotToken | UnsetType, describe(_BOT_TEXT, "xoxb-1234-5678-AbCd")] = UNSET
    app_token: Annotated[AppToken | UnsetType, describe(_APP_TEXT, "xapp-1-A012-3456-ab")] = UNSET
    template_id: Annotated[TemplateId | UnsetType | None, describe(_TEMPLATE_TEXT, TEMPLATE_ID)] = (
        UNSET
    )
    project_id: Annotated[ProjectId | UnsetType | None, describe(_PROJECT_TEXT, _PROJECT)] = UNSET
    model_id: Annotated[
        ModelConfigId | UnsetType | None,
        describe("The model of the chats. Null: the default.", MODEL_ID),
    ] = UNSET
    match_email: Annotated[bool | UnsetType, Meta(description=_EMAIL_TEXT, examples=[True])] = UNSET
    enabled: Annotated[bool | UnsetType, Meta(description=_ENABLED_TEXT, examples=[False])] = UNSET

    def __repr__(self) -> str:
        """Without the tokens."""
        return "SlackPatch()"


class SlackConfig(Struct, frozen=True, kw_only=True):
    """A connection to Slack, without its tokens."""

    id: Annotated[UUID, describe("Its id.", _ID)]
    name: Annotated[str, describe("Its name for people.", "Acme")]
    team_name: Annotated[
        str, describe("The workspace of Slack; empty until chatd has connected once.", "Acme Inc.")
    ]
    template_id: Annotated[TemplateId | None, describe(_TEMPLATE_TEXT, TEMPLATE_ID)]
    template_name: Annotated[str | None, describe("The name of the template.", "app")]
    project_id: Annotated[ProjectId | None, describe(_PROJECT_TEXT, _PROJECT)]
    project_name: Annotated[str | None, describe("The name of the project.", "Website")]
    model_id: Annotated[
        ModelConfigId | None, describe("The model of the chats. Null: the default.", MODEL_ID)
    ]
    match_email: Annotated[bool, Meta(description=_EMAIL_TEXT, examples=[False])]
    enabled: Annotated[bool, Meta(description=_ENABLED_TEXT, examples=[True])]
    connected_at: Annotated[
        datetime | None, describe("Since when chatd is connected. Null: it is not.", UPDATED_AT)
    ]
    problem: Annotated[str | None, describe("Why Slack refused a token.", None)]
    created_at: Annotated[datetime, describe("When it was added.", CREATED_AT)]
    updated_at: Annotated[datetime, describe("When it was last changed.", UPDATED_AT)]


class SlackTrial(Struct, frozen=True, kw_only=True):
    """What Slack answered to both tokens."""

    ok: Annotated[
        bool, Meta(description="Whether both are accepted, with all scopes.", examples=[True])
    ]
    team: Annotated[str, describe("The workspace of Slack.", "Acme Inc.")] = ""
    bot: Annotated[str, describe("The name of the bot.", "chatd")] = ""
    missing_scopes: Annotated[
        tuple[str, ...], describe("Scopes that the bot token lacks.", ["files:read"])
    ] = ()
    reason: Annotated[str, describe("What is wrong.", "")] = ""


class SlackEventRecord(Struct, frozen=True, kw_only=True):
    """A message or a press of a button that Slack delivered. Its text is not shown here."""

    id: Annotated[int, describe("Its number.", 41)]
    kind: Annotated[str, describe("`message` or `press`.", "message")]
    channel: Annotated[str, describe("The channel of Slack.", "C012AB3CD")]
    slack_user: Annotated[str, describe("The person of Slack.", "U012AB3CD")]
    outcome: Annotated[
        EventOutcome, describe("`waiting`: it is to be done, perhaps again.", "done")
    ]
    detail: Annotated[str, describe("Why it was ignored, or what failed last.", "")]
    attempts: Annotated[int, describe("How often it was tried.", 1)]
    chat_id: Annotated[UUID | None, describe("The chat.", CHAT_ID)]
    created_at: Annotated[datetime, describe("When it arrived.", CREATED_AT)]
    next_attempt_at: Annotated[
        datetime | None, describe("When it is tried next. Null: it has ended.", None)
    ]


class SlackLinkCode(Struct, frozen=True, kw_only=True):
    """A code that links your person of Slack, once."""

    code: Annotated[
        str,
        describe(
            "Send `link CODE` to the bot in a direct message. Show it to nobody: the sender acts"
            " as you.",
            "MFRGGZDFMZTWQ2LKNNWG23TPOA",
        ),
    ]
    expires_at: Annotated[datetime, describe("Until when it counts.", UPDATED_AT)]


class OwnSlackLink(Struct, frozen=True, kw_only=True):
    """A person of Slack that you are."""

    id: Annotated[UUID, describe("Its id.", _ID)]
    connection_name: Annotated[str, describe("The connection to Slack.", "Acme")]
    team_name: Annotated[str, describe("The workspace of Slack.", "Acme Inc.")]
    slack_user: Annotated[str, describe("The id of the person at Slack.", "U012AB3CD")]
    slack_name: Annotated[str, describe("The name of the person when it was linked.", "Ada")]
    created_at: Annotated[datetime, describe("When it was linked.", CREATED_AT)]


class SlackConnections:
    """`on_change` is called after a connection has changed on this replica."""

    def __init__(
        self,
        pool: Pool,
        ring: KeyRing,
        env: Env,
        find_model: Callable[[ModelConfigId], Awaitable[object | None]],
        requests: SlackRequests,
        *,
        on_change: Callable[[], None],
    ) -> None:
        self._pool = pool
        self._ring = ring
        self._env = env
        self._find_model = find_model
        self._requests = requests
        self._on_change = on_change

    async def add(self, by: ChangeAuthor, body: NewSlackBody) -> SlackConfig:
        """Raises Forbidden, InvalidInput, Conflict, SecretKeyMissing."""
        require_permission(by.actor, "config.write")
        new = SlackConnection(
            id=self._env.new_id(),
            name=body.name.strip(),
            template_id=body.template_id,
            project_id=body.project_id,
            model_config_id=body.model_id,
            match_email=body.match_email,
            enabled=body.enabled,
        )
        await self._check(new)
        async with self._pool.transaction() as session:
            made = await slack.insert(
                session,
                by.actor,
                new,
                sealed_bot_token=self._ring.seal(body.bot_token, SLACK_BOT_TOKEN.context(new.id)),
                sealed_app_token=self._ring.seal(body.app_token, SLACK_APP_TOKEN.context(new.id)),
                ip=by.ip,
            )
        self._on_change()
        return slack_config(made)

    async def update(self, by: ChangeAuthor, connection_id: UUID, body: SlackPatch) -> SlackConfig:
        """Raises Forbidden, NotFound, InvalidInput, Conflict, SecretKeyMissing."""
        require_permission(by.actor, "config.write")
        known = await slack.get(self._pool, by.actor, connection_id)
        given = {
            "model_config_id" if name == "model_id" else name: value
            for name in body.__struct_fields__
            if name not in ("bot_token", "app_token")
            and (value := getattr(body, name)) is not UNSET
        }
        changed = msgspec.structs.replace(known.connection, **given)
        changed = msgspec.structs.replace(changed, name=changed.name.strip())
        await self._check(changed)
        bot_token = app_token = None
        if isinstance(body.bot_token, str):
            bot_token = self._ring.seal(body.bot_token, SLACK_BOT_TOKEN.context(connection_id))
        if isinstance(body.app_token, str):
            app_token = self._ring.seal(body.app_token, SLACK_APP_TOKEN.context(connection_id))
        async with self._pool.transaction() as session:
            stored = await slack.update(
                session,
                by.actor,
                changed,
                sealed_bot_token=bot_token,
                sealed_app_token=app_token,
                ip=by.ip,
            )
        self._on_change()
        return slack_config(stored)

    async def delete(self, by: ChangeAuthor, connection_id: UUID) -> None:
        """Raises Forbidden, NotFound."""
        async with self._pool.transaction() as session:
            await slack.delete(session, by.actor, connection_id, ip=by.ip)
        self._on_change()

    async def try_connection(self, actor: Actor, connection_id: UUID) -> SlackTrial:
        """Ask Slack for both tokens. Raises Forbidden, NotFound, SecretUnreadable."""
        require_permission(actor, "config.write")
        found = await slack.open_connection(self._pool, connection_id)
        if found is None:
            raise NotFound("There is no such connection to Slack.")
        api = open_api(self._requests, self._ring, found)
        try:
            bot = await api.check()
            await refuse_twin(self._pool, connection_id)
            await api.open_socket()
        except SlackCallFailed as error:
            if error.reason == "refused":
                await slack.set_problem(self._pool, connection_id, error.message)
            return SlackTrial(ok=False, reason=error.message)
        await slack.set_problem(self._pool, connection_id, None)
        missing = tuple(bot.missing_scopes(match_email=found.connection.match_email))
        reason = "" if not missing else f"The bot token lacks scopes: {', '.join(missing)}."
        return SlackTrial(
            ok=not missing, team=bot.team, bot=bot.user, missing_scopes=missing, reason=reason
        )

    async def make_code(self, actor: Actor) -> SlackLinkCode:
        """Raises Forbidden."""
        user = _require_user(actor)
        if user.scopes is not None:  # what the person of Slack may do has no scopes
            raise Forbidden(
                "A token with scopes cannot link a person of Slack, who would have all scopes. Sign"
                " in, or use a token without scopes."
            )
        code = base64.b32encode(secrets.token_bytes(CODE_BYTES)).decode().rstrip("=")
        async with self._pool.transaction() as session:
            expires_at = await slack.make_code(session, user, code)
        return SlackLinkCode(code=code, expires_at=expires_at)

    async def unlink(self, by: ChangeAuthor, link_id: UUID) -> None:
        """Raises Forbidden, NotFound."""
        user = _require_user(by.actor)
        async with self._pool.transaction() as session:
            await slack.delete_link(session, user, link_id, ip=by.ip)

    async def _check(self, one: SlackConnection) -> None:
        """Raises InvalidInput."""
        if not one.name or not one.name.isprintable():
            raise InvalidInput("name", "must have printable characters only")
        if one.model_config_id is not None and await self._find_model(one.model_config_id) is None:
            raise InvalidInput("model_id", "there is no such model")
        if one.template_id is not None:
            template = await templates.get(self._pool, one.template_id)
            if template is None or template.deleted:
                raise InvalidInput("template_id", "there is no such template")


def _require_user(actor: Actor) -> UserActor:
    if not isinstance(actor, UserActor):
        raise Forbidden("Only users have links to Slack.")
    return actor


def slack_config(stored: StoredSlack) -> SlackConfig:
    one = stored.connection
    return SlackConfig(
        id=one.id,
        name=one.name,
        team_name=one.team_name,
        template_id=one.template_id,
        template_name=stored.template_name,
        project_id=one.project_id,
        project_name=stored.project_name,
        model_id=one.model_config_id,
        match_email=one.match_email,
        enabled=one.enabled,
        connected_at=stored.connected_at,
        problem=one.problem,
        created_at=stored.created_at,
        updated_at=stored.updated_at,
    )


def slack_event_record(stored: StoredSlackEvent) -> SlackEventRecord:
    return SlackEventRecord(
        id=stored.id,
        kind=stored.event.kind,
        channel=stored.event.channel,
        slack_user=stored.event.user,
        outcome=stored.outcome,
        detail=stored.detail,
        attempts=stored.attempts,
        chat_id=stored.chat_id,
        created_at=stored.created_at,
        next_attempt_at=stored.due_at,
    )


def own_slack_link(link: SlackLink) -> OwnSlackLink:
    return msgspec.convert(link, OwnSlackLink, from_attributes=True)

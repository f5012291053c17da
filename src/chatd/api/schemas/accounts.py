"""Bodies, queries and replies about sign-in, tokens, users, groups and the audit log.

Docstrings here are part of the OpenAPI document.
"""

from datetime import datetime
from typing import Annotated, Any, Final, Literal
from uuid import UUID

from msgspec import UNSET, Meta, Struct, UnsetType, convert, structs

from chatd.api.schemas.messages import from_rows
from chatd.domain.access.accounts import AuditOutcome, Credential, Group, User, UserStatus
from chatd.domain.access.permissions import Role, TokenScope
from chatd.domain.access.secret_text import token_label
from chatd.domain.description import CREATED_AT, UPDATED_AT, USER_ID, describe
from chatd.domain.ids import CredentialId
from chatd.domain.list_page import ListPage, ListQuery

GROUP_ID_EXAMPLE = "0193c5a6-2a10-7c31-8f42-1b2c3d4e5f60"
CREDENTIAL_ID_EXAMPLE = "3f2a9c0d-1e5b-4c7a-9d21-6e8f0a1b2c3d"
MAX_SECRET_CHARS = 1024

SecretText = Annotated[str, Meta(max_length=MAX_SECRET_CHARS)]
Username = Annotated[
    str,
    Meta(min_length=1, max_length=64),
    describe("Letters, digits and . _ @ + - inside. Unique in any case.", "ada"),
]
Email = Annotated[str, Meta(max_length=254), describe("Unique in any case.", "ada@example.com")]
DisplayName = Annotated[str, Meta(max_length=200), describe("The name to show.", "Ada Lovelace")]
AvatarUrl = Annotated[
    str,
    Meta(max_length=2000, pattern=r"^https://"),
    describe("The address of a picture.", "https://example.com/ada.png"),
]
Scopes = Annotated[
    tuple[TokenScope, ...],
    Meta(max_length=20),
    describe("What the token may do. Null: all that its user may.", ["chat:read", "chat:write"]),
]


# Sign-in


class SetupReply(Struct, frozen=True, kw_only=True):
    """Whether this server waits for its first sign-in."""

    needed: Annotated[
        bool,
        Meta(
            description="Whether no administrator has signed in or can sign in yet.",
            examples=[False],
        ),
    ]
    message: Annotated[
        str | None,
        describe("What to do, if it is needed.", "Open the link that chatd serve printed."),
    ]


class SignInMethodsReply(Struct, frozen=True, kw_only=True):
    """The ways to sign in."""

    password: Annotated[
        bool, Meta(description="Whether users sign in with a password.", examples=[True])
    ]
    oidc: Annotated[
        str | None,
        describe("The name of the OpenID provider, if there is one.", "Example Login"),
    ]


class OidcStartQuery(Struct, frozen=True, kw_only=True):
    """Where to go after the sign-in."""

    next: Annotated[
        Annotated[str, Meta(max_length=1000)] | None,
        describe("A path of this server. Anything else leads to the first page.", "/docs"),
    ] = None


class OidcCallbackQuery(Struct, frozen=True, kw_only=True):
    """The provider's answer. Further parameters are ignored."""

    code: Annotated[str | None, describe("The authorization code.", "SplxlOBeZQQYbYS6WxSbIA")] = (
        None
    )
    state: Annotated[
        str | None,
        describe("That of the request.", "Jq3vW8bT0cY5rA9dK2xN7mP4sF6hL1zE0uG8iO5tB3w"),
    ] = None
    error: Annotated[str | None, describe("Why the user was not signed in.", "access_denied")] = (
        None
    )


class LoginBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sign-in with a password."""

    username: Annotated[SecretText, describe("The username, or the email.", "ada")]
    password: Annotated[SecretText, describe("The password.", "correct horse battery")]


class LinkBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sign-in with a one-time link."""

    secret: Annotated[
        SecretText,
        describe("What follows # in the link.", "sT4x0mP1eS3cretOfALinkThatIsUsedOnlyOnceX1"),
    ]


class UserReply(Struct, frozen=True, kw_only=True):
    """A user."""

    id: Annotated[UUID, describe("Its id.", USER_ID)]
    username: Username
    email: Annotated[str | None, describe("The email, if known.", "ada@example.com")]
    name: Annotated[str, describe("The name to show; may be empty.", "Ada Lovelace")]
    avatar_url: Annotated[
        str | None, describe("The address of a picture.", "https://example.com/ada.png")
    ]
    role: Annotated[
        Role,
        describe(
            "`admin` manages the server, `member` uses it, `viewer` reads everything.", "member"
        ),
    ]
    status: Annotated[
        UserStatus, describe("A suspended user cannot sign in or use a token.", "active")
    ]
    is_service: Annotated[
        bool,
        Meta(
            description="Whether it is a service account, which uses tokens only.", examples=[False]
        ),
    ]
    has_password: Annotated[bool, Meta(description="Whether a password is set.", examples=[True])]
    created_at: Annotated[datetime, describe("When it was created.", CREATED_AT)]
    updated_at: Annotated[datetime, describe("When it was last changed.", UPDATED_AT)]
    last_seen_at: Annotated[
        datetime | None, describe("When it was last used, to the hour.", UPDATED_AT)
    ]


class SignedInReply(Struct, frozen=True, kw_only=True):
    """A new session. Its secret is in the cookie only."""

    user: Annotated[UserReply, describe("The user.")]
    csrf_token: Annotated[
        str,
        describe(
            "The value of the header X-CSRF-Token, which requests with the cookie need if they"
            " change something.",
            "Jq3vW8bT0cY5rA9dK2xN7mP4sF6hL1zE0uG8iO5tB3w",
        ),
    ]
    expires_at: Annotated[
        datetime | None, describe("When the session ends unless it is used.", UPDATED_AT)
    ]


class MeReply(Struct, frozen=True, kw_only=True):
    """The caller."""

    user: Annotated[UserReply, describe("The user.")]
    credential: Annotated[
        Literal["session", "token"], describe("How the caller has signed in.", "session")
    ]
    scopes: Annotated[Scopes | None, describe("The scopes of the token; null: all.", None)]
    expires_at: Annotated[
        datetime | None, describe("When the session or the token expires.", UPDATED_AT)
    ]
    csrf_token: Annotated[
        str | None,
        describe(
            "The value of the header X-CSRF-Token; null for a token, which needs none.",
            "Jq3vW8bT0cY5rA9dK2xN7mP4sF6hL1zE0uG8iO5tB3w",
        ),
    ]
    restored_from: Annotated[
        datetime | None,
        describe(
            "When the backup was made that this deployment was restored from, while no"
            " administrator has confirmed it. Until then chats, schedules and webhooks wait.",
            None,
        ),
    ] = None


class PasswordBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new password of your own."""

    current_password: Annotated[
        SecretText | None,
        describe("The password until now. Null if there is none.", "correct horse battery"),
    ] = None
    new_password: Annotated[
        SecretText, describe("At least 12 characters.", "an even longer passphrase")
    ]


class NewPasswordBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new password of a user."""

    password: Annotated[
        SecretText, describe("At least 12 characters.", "an even longer passphrase")
    ]


class TicketReply(Struct, frozen=True, kw_only=True):
    """A one-time ticket for an EventSource or a WebSocket."""

    ticket: Annotated[
        str,
        describe(
            "The value of the parameter `ticket`. It opens one stream.",
            "k9Lw2Qx7Rb4Vt1Yc8Zs5Fd3Gh6Jm0Np2Aq7Ue4Io1Xz",
        ),
    ]
    expires_at: Annotated[datetime, describe("When it expires, a minute from now.", UPDATED_AT)]


# Sessions and tokens


class SessionReply(Struct, frozen=True, kw_only=True):
    """A browser that is signed in."""

    id: Annotated[UUID, describe("Its id.", CREDENTIAL_ID_EXAMPLE)]
    is_current: Annotated[bool, Meta(description="Whether it sent this request.", examples=[True])]
    created_at: Annotated[datetime, describe("When it began.", CREATED_AT)]
    last_used_at: Annotated[
        datetime | None, describe("When it was last used, to the hour.", UPDATED_AT)
    ]
    expires_at: Annotated[datetime | None, describe("When it ends unless it is used.", UPDATED_AT)]
    ends_at: Annotated[datetime | None, describe("When it ends in any case.", UPDATED_AT)]
    ip: Annotated[str | None, describe("The address that signed in.", "192.0.2.7")]
    user_agent: Annotated[str | None, describe("The browser.", "Mozilla/5.0 (X11; Linux x86_64)")]


class SessionPage(ListPage[SessionReply], frozen=True, kw_only=True):
    """A page of sessions."""


class NewTokenBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A token to create."""

    name: Annotated[
        str, Meta(min_length=1, max_length=100), describe("Its purpose.", "nightly job")
    ]
    scopes: Annotated[
        Scopes | None,
        describe("What it may do. Null: all that its user may.", ["chat:read", "chat:write"]),
    ] = None
    expires_at: Annotated[
        Annotated[datetime, Meta(tz=True)] | None,
        describe(
            "When it expires. Null: never. A token that a token makes expires with that one at the"
            " latest.",
            "2027-01-01T00:00:00Z",
        ),
    ] = None


class TokenReply(Struct, frozen=True, kw_only=True):
    """An API token, without its secret."""

    id: Annotated[UUID, describe("Its id.", CREDENTIAL_ID_EXAMPLE)]
    name: Annotated[str, describe("Its purpose.", "nightly job")]
    prefix: Annotated[
        str, describe("How the token begins, to find it in a file.", "chatd_3f2a9c0d1e5b")
    ]
    scopes: Annotated[Scopes | None, describe("What it may do; null: all.", ["chat:read"])]
    created_at: Annotated[datetime, describe("When it was created.", CREATED_AT)]
    created_by: Annotated[UUID | None, describe("The user who created it.", USER_ID)]
    expires_at: Annotated[
        datetime | None, describe("When it expires; null: never.", "2027-01-01T00:00:00Z")
    ]
    last_used_at: Annotated[
        datetime | None, describe("When it was last used, to the hour.", UPDATED_AT)
    ]


class CreatedTokenReply(TokenReply, frozen=True, kw_only=True):
    """A new API token. Its secret is shown only here."""

    token: Annotated[
        str,
        describe(
            "The token. Keep it now: it cannot be read again.",
            "chatd_3f2a9c0d1e5b_sT4x0mP1eS3cretOfATokenThatIsShownOnlyOnceX",
        ),
    ]


class TokenPage(ListPage[TokenReply], frozen=True, kw_only=True):
    """A page of tokens."""


# Users and groups


class NewUserBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A user to create."""

    username: Username
    role: Annotated[Role, describe("The role.", "member")] = "member"
    email: Annotated[Email | None, describe("The email.", "ada@example.com")] = None
    name: DisplayName = ""
    password: Annotated[
        SecretText | None,
        describe(
            "At least 12 characters. Null: the user signs in by the OpenID provider, or an"
            " administrator sets a password later.",
            "correct horse battery",
        ),
    ] = None
    is_service: Annotated[
        bool,
        Meta(
            description="Whether it is a service account, which uses tokens only.", examples=[False]
        ),
    ] = False


class UserPatchBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to change about a user. A field that is left out stays."""

    username: Username | UnsetType = UNSET
    email: Annotated[Email | UnsetType | None, describe("Null removes it.", "ada@example.com")] = (
        UNSET
    )
    name: DisplayName | UnsetType = UNSET
    avatar_url: Annotated[
        AvatarUrl | UnsetType | None, describe("Null removes it.", "https://example.com/ada.png")
    ] = UNSET
    role: Annotated[Role | UnsetType, describe("The role.", "viewer")] = UNSET
    status: Annotated[
        UserStatus | UnsetType,
        describe("`suspended` ends all sessions and tokens within a second.", "suspended"),
    ] = UNSET


class UserPage(ListPage[UserReply], frozen=True, kw_only=True):
    """A page of users."""


class GroupBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A group's name."""

    name: Annotated[
        str,
        Meta(min_length=1, max_length=100, pattern=r"\S"),
        describe("Unique in any case.", "Engineers"),
    ]


class GroupReply(Struct, frozen=True, kw_only=True):
    """A group of users. Chats can be shared with it."""

    id: Annotated[UUID, describe("Its id.", GROUP_ID_EXAMPLE)]
    name: Annotated[str, describe("Its name.", "Engineers")]
    created_at: Annotated[datetime, describe("When it was created.", CREATED_AT)]
    member_count: Annotated[int, describe("How many users it has.", 4)]


class GroupPage(ListPage[GroupReply], frozen=True, kw_only=True):
    """A page of groups."""


# The audit log


_ACTOR: Final = describe("Only what this user did.", USER_ID)
_OBJECT_TYPE: Final = describe("Only what was done to objects of this type.", "user")
_OBJECT_ID: Final = describe("With `object_type`: only what was done to this object.", USER_ID)
_SINCE: Final = describe("Only what was done then or later.", CREATED_AT)
_UNTIL: Final = describe("Only what was done before.", CREATED_AT)
_TEXT: Final = describe("Only entries with this text in what was done or in the details.", "price")

_ObjectType = Annotated[str, Meta(max_length=50)]
_ObjectId = Annotated[str, Meta(max_length=200)]
_Text = Annotated[str, Meta(min_length=1, max_length=200)]
_When = Annotated[datetime, Meta(tz=True)]


class AuditExportQuery(Struct, frozen=True, kw_only=True):
    """Entries of one actor, about one object or type of objects, of a time, with a text."""

    actor_id: Annotated[UUID | None, _ACTOR] = None
    object_type: Annotated[_ObjectType | None, _OBJECT_TYPE] = None
    object_id: Annotated[_ObjectId | None, _OBJECT_ID] = None
    since: Annotated[_When | None, _SINCE] = None
    until: Annotated[_When | None, _UNTIL] = None
    q: Annotated[_Text | None, _TEXT] = None


class AuditQuery(ListQuery, frozen=True, kw_only=True):
    """Entries of one actor, about one object or type of objects, of a time, with a text."""

    actor_id: Annotated[UUID | None, _ACTOR] = None
    object_type: Annotated[_ObjectType | None, _OBJECT_TYPE] = None
    object_id: Annotated[_ObjectId | None, _OBJECT_ID] = None
    since: Annotated[_When | None, _SINCE] = None
    until: Annotated[_When | None, _UNTIL] = None
    q: Annotated[_Text | None, _TEXT] = None


class AuditEntryReply(Struct, frozen=True, kw_only=True):
    """What was done, by whom, from where."""

    id: Annotated[int, describe("Its number.", 42)]
    at: Annotated[datetime, describe("When.", CREATED_AT)]
    actor_id: Annotated[UUID | None, describe("The user, if it was one.", USER_ID)]
    actor: Annotated[str, describe("The username at that time, or the command.", "ada")]
    actor_name: Annotated[
        str, describe("Who did it, for people: the name today, or a command.", "ada")
    ]
    ip: Annotated[str | None, describe("The address of the client.", "192.0.2.7")]
    action: Annotated[str, describe("An object and a verb.", "user.suspend")]
    object_type: Annotated[str, describe("The type of the object.", "user")]
    object_id: Annotated[str, describe("Its id.", USER_ID)]
    object_name: Annotated[
        str | None, describe("Its name today, or the last one known; null: none is known.", "bob")
    ]
    object_is_deleted: Annotated[bool, describe("Whether the object is deleted.")]
    object_text: Annotated[str, describe("The object, for people.", "the user bob")]
    summary: Annotated[
        str, describe("What was done, to be read after the actor.", "suspended the user bob")
    ]
    detail: Annotated[
        dict[str, Any] | None,
        describe(
            "What changed, without secrets.",
            {"before": {"status": "active"}, "after": {"status": "suspended"}},
        ),
    ]
    outcome: Annotated[AuditOutcome, describe("Whether it was done.", "done")]


class AuditPage(ListPage[AuditEntryReply], frozen=True, kw_only=True):
    """A page of the audit log."""


# Replies about users, sessions, tokens and groups, made from their rows.


def user_reply(user: User) -> UserReply:
    return UserReply(**structs.asdict(user))


def group_reply(group: Group) -> GroupReply:
    return GroupReply(**structs.asdict(group))


def session_reply(session: Credential, current: CredentialId | None) -> SessionReply:
    return from_rows(SessionReply, session, is_current=session.id == current)


def token_reply(token: Credential) -> TokenReply:
    fields = {"prefix": token_label(token.id)} | structs.asdict(token)
    return convert(fields, TokenReply)

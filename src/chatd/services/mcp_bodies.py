"""Bodies and replies about MCP servers. A secret is never returned, and never shown by a body's
repr.

Docstrings and descriptions here are part of the OpenAPI document.
"""

from datetime import datetime
from typing import Annotated, ClassVar, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from chatd.domain.description import CREATED_AT, MCP_SERVER_ID, UPDATED_AT, describe
from chatd.domain.ids import McpServerId
from chatd.domain.list_page import ListPage
from chatd.domain.mcp.oauth import TokenAuth
from chatd.domain.mcp.servers import McpAuth, McpAvailability, McpSource, McpTransport

Slug = Annotated[str, Meta(min_length=1, max_length=32, pattern=r"^[a-z0-9]+([-_][a-z0-9]+)*$")]
ServerName = Annotated[str, Meta(min_length=1, max_length=100, pattern=r"\S")]
Description = Annotated[str, Meta(max_length=1000)]
ServerUrl = Annotated[str, Meta(min_length=1, max_length=2000)]
ToolNames = Annotated[
    tuple[Annotated[str, Meta(min_length=1, max_length=128)], ...],
    Meta(max_length=500),
]
HeaderName = Annotated[str, Meta(min_length=1, max_length=128)]
SecretText = Annotated[str, Meta(min_length=1, max_length=8192)]
ClientId = Annotated[str, Meta(min_length=1, max_length=2000, pattern=r"^[\x20-\x7e]+$")]
Scopes = Annotated[str, Meta(max_length=2000, pattern=r"^[\x20-\x7e]*$")]

_SLUG = describe("The beginning of its tools' names. Unique.", "github")
_DISPLAY_NAME = describe("Its name for people.", "GitHub")
_DESCRIPTION = describe("What it is for, for people.", "Issues and pull requests.")
_URL = describe("The address of the server.", "https://mcp.example.com/mcp")
_TRANSPORT = describe("How it is spoken to.", "streamable_http")
_AUTH = describe(
    "How chatd authenticates: not at all, with a token of each user, or with one key or with"
    " headers for all users.",
    "oauth2",
)
_ENABLED = describe("Whether chats can use it.")
_AVAILABILITY = describe(
    "`force_on`: every chat uses it. `default_on`: chats use it unless others are chosen."
    " `default_off`: only chats for which it is chosen.",
    "default_on",
)
_ALLOW = describe(
    "The tools that may be used, by the server's names; empty: all but those of `deny`.",
    ["list_issues"],
)
_DENY = describe("The tools that may not be used; ignored if `allow` names any.", ["delete_repo"])
_INTENT = describe("Whether the model must say the purpose of each call.")
_PLAN = describe("Whether its tools may be used in plan mode.")
_API_KEY_HEADER = describe("The header that carries the key, for `api_key`.", "X-Api-Key")
_API_KEY = describe("The key, for `api_key`. Stored sealed, and never returned.", "k-...")
_HEADERS = describe(
    "All headers, for `custom_headers`. Stored sealed, and never returned.", {"X-Team": "a"}
)
_SCOPES = describe(
    "The OAuth scopes to ask for, separated by spaces; empty: those that the server names.",
    "repo read:user",
)
_OAUTH = describe(
    "A client that was registered by hand at the authorization server; null: chatd finds the server"
    " and registers itself, again after each change that sets null."
)


class McpOauthBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A client of chatd that an administrator registered at an authorization server, with the
    `redirect_path` of the MCP server."""

    client_id: Annotated[ClientId, describe("The client's id.", "chatd-1f2e")]
    client_secret: Annotated[
        SecretText | UnsetType | None,
        describe(
            "The client's secret. Stored sealed, and never returned. Left out, the stored one stays"
            " if id and token address are the same; null: none.",
            "s3cr3t...",
        ),
    ] = UNSET
    authorization_url: Annotated[
        ServerUrl, describe("Where users are asked.", "https://login.example.com/authorize")
    ]
    token_url: Annotated[
        ServerUrl, describe("Where tokens are asked for.", "https://login.example.com/token")
    ]
    revocation_url: Annotated[
        ServerUrl | None,
        describe("Where tokens are revoked, if anywhere.", "https://login.example.com/revoke"),
    ] = None
    token_auth: Annotated[
        TokenAuth | None,
        describe(
            "How the client authenticates there; null: by its secret in a header if it has one.",
            "client_secret_post",
        ),
    ] = None

    def __repr__(self) -> str:
        return f"McpOauthBody(client_id={self.client_id!r})"


class CreateMcpServerBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new MCP server."""

    openapi_example: ClassVar[dict[str, object]] = {
        "slug": "github",
        "url": "https://mcp.example.com/mcp",
        "auth": "oauth2",
        "availability": "default_on",
    }

    slug: Annotated[Slug, _SLUG]
    url: Annotated[ServerUrl, _URL]
    display_name: Annotated[ServerName | None, _DISPLAY_NAME] = None
    description: Annotated[Description, _DESCRIPTION] = ""
    transport: Annotated[McpTransport, _TRANSPORT] = "streamable_http"
    auth: Annotated[McpAuth, _AUTH] = "none"
    enabled: Annotated[bool, _ENABLED] = True
    availability: Annotated[McpAvailability, _AVAILABILITY] = "default_off"
    allow: Annotated[ToolNames, _ALLOW] = ()
    deny: Annotated[ToolNames, _DENY] = ()
    model_intent: Annotated[bool, _INTENT] = False
    allow_in_plan_mode: Annotated[bool, _PLAN] = False
    api_key_header: Annotated[HeaderName | None, _API_KEY_HEADER] = None
    api_key: Annotated[SecretText | None, _API_KEY] = None
    headers: Annotated[dict[str, SecretText], Meta(max_length=50), _HEADERS] = {}
    oauth: Annotated[McpOauthBody | None, _OAUTH] = None
    scopes: Annotated[Scopes, _SCOPES] = ""

    def __repr__(self) -> str:
        return f"CreateMcpServerBody(slug={self.slug!r})"


class UpdateMcpServerBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is left out stays. A key and headers are sent only to the host that they were given for:
    with an address of another host they must be given again. A change of the address, of the kind
    of auth, of the client or of the scopes ends the connections of all users."""

    slug: Annotated[Slug | UnsetType, _SLUG] = UNSET
    url: Annotated[ServerUrl | UnsetType, _URL] = UNSET
    display_name: Annotated[ServerName | UnsetType, _DISPLAY_NAME] = UNSET
    description: Annotated[Description | UnsetType, _DESCRIPTION] = UNSET
    transport: Annotated[McpTransport | UnsetType, _TRANSPORT] = UNSET
    auth: Annotated[McpAuth | UnsetType, _AUTH] = UNSET
    enabled: Annotated[bool | UnsetType, _ENABLED] = UNSET
    availability: Annotated[McpAvailability | UnsetType, _AVAILABILITY] = UNSET
    allow: Annotated[ToolNames | UnsetType, _ALLOW] = UNSET
    deny: Annotated[ToolNames | UnsetType, _DENY] = UNSET
    model_intent: Annotated[bool | UnsetType, _INTENT] = UNSET
    allow_in_plan_mode: Annotated[bool | UnsetType, _PLAN] = UNSET
    api_key_header: Annotated[HeaderName | UnsetType, _API_KEY_HEADER] = UNSET
    api_key: Annotated[SecretText | UnsetType, _API_KEY] = UNSET
    headers: Annotated[
        Annotated[dict[str, SecretText], Meta(max_length=50)] | UnsetType, _HEADERS
    ] = UNSET
    oauth: Annotated[McpOauthBody | UnsetType | None, _OAUTH] = UNSET
    scopes: Annotated[Scopes | UnsetType, _SCOPES] = UNSET

    def __repr__(self) -> str:
        return "UpdateMcpServerBody(...)"


class McpOauthReply(Struct, frozen=True, kw_only=True):
    """A client that was registered by hand, without its secret."""

    client_id: Annotated[str, describe("The client's id.", "chatd-1f2e")]
    authorization_url: Annotated[
        str, describe("Where users are asked.", "https://login.example.com/authorize")
    ]
    token_url: Annotated[
        str, describe("Where tokens are asked for.", "https://login.example.com/token")
    ]
    revocation_url: Annotated[
        str | None,
        describe("Where tokens are revoked, if anywhere.", "https://login.example.com/revoke"),
    ]
    token_auth: Annotated[
        TokenAuth, describe("How the client authenticates there.", "client_secret_basic")
    ]
    has_client_secret: Annotated[bool, describe("Whether there is a secret.")]


class McpServerConfigReply(Struct, frozen=True, kw_only=True):
    """An MCP server as it is configured, without its secrets."""

    id: Annotated[McpServerId, describe("Its id.", MCP_SERVER_ID)]
    slug: Annotated[str, _SLUG]
    display_name: Annotated[str, _DISPLAY_NAME]
    description: Annotated[str, _DESCRIPTION]
    url: Annotated[str, _URL]
    transport: Annotated[McpTransport, _TRANSPORT]
    auth: Annotated[McpAuth, _AUTH]
    enabled: Annotated[bool, _ENABLED]
    availability: Annotated[McpAvailability, _AVAILABILITY]
    allow: Annotated[tuple[str, ...], _ALLOW]
    deny: Annotated[tuple[str, ...], _DENY]
    model_intent: Annotated[bool, _INTENT]
    allow_in_plan_mode: Annotated[bool, _PLAN]
    api_key_header: Annotated[str | None, _API_KEY_HEADER]
    has_api_key: Annotated[bool, describe("Whether there is a key.")]
    header_names: Annotated[
        tuple[str, ...], describe("The names of its headers, without their values.", ["X-Team"])
    ]
    oauth: Annotated[
        McpOauthReply | None,
        describe("The client that was registered by hand; null: chatd registers itself."),
    ]
    scopes: Annotated[str, _SCOPES]
    redirect_path: Annotated[
        str,
        describe(
            "Where browsers come back to, after this server's public address: an authorization"
            " server with a client that is registered by hand must know it.",
            f"/api/v1/mcp-servers/{MCP_SERVER_ID}/callback",
        ),
    ]
    source: Annotated[
        McpSource,
        describe("`settings`: a server declares it; then it cannot be changed here.", "database"),
    ]
    version: Annotated[int, describe("Counts its changes.", 3)]
    created_at: Annotated[datetime, describe("When it was created.", CREATED_AT)]
    updated_at: Annotated[datetime, describe("When it last changed.", UPDATED_AT)]


class McpServerConfigPage(ListPage[McpServerConfigReply], frozen=True, kw_only=True):
    """A page of MCP servers, as they are configured."""


class McpTrialTool(Struct, frozen=True, kw_only=True):
    """A tool that the server offers."""

    name: Annotated[str, describe("Its name at the server.", "list_issues")]
    description: Annotated[
        str, describe("What it does, in the server's words.", "Lists the issues of a repository.")
    ]
    is_used: Annotated[bool, describe("Whether `allow` and `deny` let chats use it.")]


class McpTrialReply(Struct, frozen=True, kw_only=True):
    """What a connection to the server gave."""

    ok: Annotated[bool, describe("Whether the connection and the list of tools succeeded.")]
    problem: Annotated[
        str, describe("Why not, and what to do; empty if it succeeded.", "The server refused.")
    ]
    duration_ms: Annotated[int, describe("How long it took, in milliseconds.", 240)]
    tools: Annotated[tuple[McpTrialTool, ...], describe("The tools that the server offers.")]


class McpConnectionReply(Struct, frozen=True, kw_only=True):
    """Whether the caller's chats can use a server."""

    state: Annotated[
        Literal["ready", "connected", "needs_connect", "failed"],
        describe(
            "`ready`: it needs no connection of users. `failed`: the grant has ended; connect"
            " again.",
            "connected",
        ),
    ]
    reason: Annotated[
        str, describe("Why it is not usable, for people; empty if it is.", "The grant was revoked.")
    ]
    connected_at: Annotated[
        datetime | None, describe("When you connected, if you did.", CREATED_AT)
    ]
    expires_at: Annotated[
        datetime | None,
        describe("When the token expires, which is renewed before that if possible.", UPDATED_AT),
    ]


class McpServerReply(Struct, frozen=True, kw_only=True):
    """An MCP server that the caller's chats can use."""

    id: Annotated[McpServerId, describe("Its id.", MCP_SERVER_ID)]
    slug: Annotated[str, _SLUG]
    display_name: Annotated[str, _DISPLAY_NAME]
    description: Annotated[str, _DESCRIPTION]
    availability: Annotated[McpAvailability, _AVAILABILITY]
    auth: Annotated[McpAuth, _AUTH]
    allow_in_plan_mode: Annotated[bool, _PLAN]
    connection: Annotated[McpConnectionReply, describe("Whether you are connected to it.")]


class McpServerPage(ListPage[McpServerReply], frozen=True, kw_only=True):
    """A page of MCP servers that the caller's chats can use."""


class McpConnectReply(Struct, frozen=True, kw_only=True):
    """Where to send the browser."""

    authorization_url: Annotated[
        str,
        describe(
            "The page of the authorization server that asks the user.",
            "https://login.example.com/authorize?response_type=code&...",
        ),
    ]


class McpClientReply(Struct, frozen=True, kw_only=True):
    """chatd as a client of OAuth, for authorization servers that read such descriptions."""

    client_id: Annotated[
        str,
        describe(
            "The address of this description.",
            f"https://chat.example.com/api/v1/mcp-servers/{MCP_SERVER_ID}/client",
        ),
    ]
    client_name: Annotated[str, describe("The name for people.", "chatd")]
    redirect_uris: Annotated[
        tuple[str, ...],
        describe(
            "Where browsers come back to.",
            [f"https://chat.example.com/api/v1/mcp-servers/{MCP_SERVER_ID}/callback"],
        ),
    ]
    grant_types: Annotated[
        tuple[str, ...], describe("What the client asks for.", ["authorization_code"])
    ] = ("authorization_code", "refresh_token")
    response_types: Annotated[tuple[str, ...], describe("How it is answered.", ["code"])] = (
        "code",
    )
    token_endpoint_auth_method: Annotated[
        str, describe("How the client authenticates: PKCE protects the code.", "none")
    ] = "none"


class McpDisconnectReply(Struct, frozen=True, kw_only=True):
    """What became of the tokens at the authorization server. Here they are deleted."""

    revoked: Annotated[bool, describe("Whether the authorization server has revoked them.")]
    failure: Annotated[
        str,
        describe("Why not; empty if it has.", "The authorization server cannot revoke tokens."),
    ]


class McpCallbackQuery(Struct, frozen=True, kw_only=True):
    """What an authorization server adds to the address. Other parameters are ignored."""

    code: Annotated[str | None, describe("The code for the tokens.", "SplxlOBeZQQYbYS6WxSbIA")] = (
        None
    )
    state: Annotated[
        str | None, describe("The state that the connection was begun with.", "af0ifjsldkj")
    ] = None
    iss: Annotated[
        str | None, describe("Who sends the browser back.", "https://login.example.com")
    ] = None
    error: Annotated[str | None, describe("Why there is no code.", "access_denied")] = None
    error_description: Annotated[
        str | None, describe("The reason, for people.", "The user said no.")
    ] = None

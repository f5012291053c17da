"""`Settings`: every key with its type, bounds, default and description.

`keys` derives the names of files, variables and flags from it; `loader` reads them.
"""

import re
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from chatd.domain.errors import ChatdError
from chatd.domain.model.protocol import Fallback

PostgresUrl = Annotated[str, Meta(pattern="^postgres(ql)?://.")]
TimeoutSeconds = Annotated[float, Meta(gt=0, le=3600)]


POSTGRESQL_NOTIFICATIONS: Final = "postgresql"
ADDRESSES_WITH_PASSWORDS: Final = frozenset({"database.url", "server.notifications"})


class SettingsError(ChatdError):
    """A key or value was refused. The message names it and its source."""

    code = "settings"


class DatabaseSettings(msgspec.Struct, frozen=True, kw_only=True):
    url: Annotated[
        PostgresUrl | None,
        Meta(
            description="PostgreSQL to use; without it, chatd runs one in the data directory",
            extra={"expected": "an address such as postgresql://user@host/name"},
        ),
    ] = None
    pool_size: Annotated[
        int, Meta(ge=2, le=500, description="Maximum number of connections of this process")
    ] = 10
    statement_timeout_s: Annotated[
        TimeoutSeconds, Meta(description="Maximum run time of a statement")
    ] = 15.0
    slow_statement_s: Annotated[
        float,
        Meta(ge=0, le=3600, description="Log statements that take this long; 0: none"),
    ] = 1.0
    lock_timeout_s: Annotated[
        TimeoutSeconds, Meta(description="Maximum time a statement waits for a lock")
    ] = 5.0

    start_wait_s: Annotated[
        float,
        Meta(
            ge=0,
            le=3600,
            description="How long a start waits for a database that is starting or has no free"
            " connection; 0: it fails at once",
        ),
    ] = 60.0

    def __repr__(self) -> str:
        """Without the password: settings end up in logs."""
        shown = msgspec.structs.asdict(self)
        shown["url"] = None if self.url is None else redact_url(self.url)
        return (
            f"DatabaseSettings({', '.join(f'{name}={value!r}' for name, value in shown.items())})"
        )


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="Minimum log level")
    ] = "info"
    format: Annotated[
        Literal["text", "json"], Meta(description="One line of text, or one JSON object, per event")
    ] = "text"


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    host: Annotated[str, Meta(min_length=1, description="Address to listen on")] = "127.0.0.1"
    port: Annotated[
        int, Meta(ge=0, le=65535, description="Port to listen on; 0 chooses a free one")
    ] = 7870
    processes: Annotated[
        Annotated[int, Meta(ge=1, le=64)] | Literal["auto"],
        Meta(
            description="How many processes serve the port and run chats; `auto` takes one for each"
            " core, at most 8",
            extra={"expected": "a number from 1 to 64, or auto"},
        ),
    ] = 1
    url: Annotated[
        Annotated[str, Meta(pattern=r"^https?://[^/?#\s]+/?$")] | None,
        Meta(
            description="Public address of the server, as browsers use it",
            extra={"expected": "an address such as https://chat.example.com"},
        ),
    ] = None
    allowed_hosts: Annotated[
        tuple[str, ...],
        Meta(description="Further host names of the server, besides loopback and that of the URL"),
    ] = ()
    allowed_origins: Annotated[
        tuple[str, ...],
        Meta(description="Further sites with pages that may use the API, with https://"),
    ] = ()
    frame_origins: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^https?://[a-z0-9.:\[\]-]+$")], ...],
        Meta(
            description="Further sites whose pages may show a chat in a frame, at /embed/c/<chat>;"
            " without any only this server's own pages may",
            extra={"expected": "addresses such as https://intranet.example.com"},
        ),
    ] = ()
    peer_address: Annotated[
        Annotated[str, Meta(pattern=r"^(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}$")] | None,
        Meta(
            description="Host and port at which other replicas reach this one, for workspaces that"
            " only this one reaches; it listens there, encrypted. Needed if replicas run on several"
            " hosts",
            extra={"expected": "host:port, such as 10.0.0.2:7871"},
        ),
    ] = None
    join: Annotated[
        bool,
        Meta(
            description="A host without the secrets of its deployment asks the running servers for"
            " them, through the database, and this one answers such hosts"
        ),
    ] = True
    notifications: Annotated[
        Annotated[str, Meta(pattern=r"^(postgresql|(nats|tls)://.+)$")],
        Meta(
            description="Transport of notifications between servers: `postgresql`, or NATS,"
            " nats://user:password@host:4222/subject",
            extra={"expected": "postgresql, or an address such as nats://nats.example.com:4222"},
        ),
    ] = POSTGRESQL_NOTIFICATIONS
    preview_host: Annotated[
        Annotated[str, Meta(pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?$")] | None,
        Meta(
            description="Domain whose names all lead to this server (*.preview.example.com), for"
            " previews of the ports of workspaces; on this machine they need none",
            extra={"expected": "a host name such as preview.example.com"},
        ),
    ] = None
    trusted_proxies: Annotated[
        tuple[str, ...],
        Meta(
            description="Addresses or networks of proxies that send the client's address in"
            " X-Forwarded-For"
        ),
    ] = ()
    open_browser: Annotated[
        bool,
        Meta(description="On a desktop, open a browser that can be signed in at the start"),
    ] = True
    metrics_token: Annotated[
        Annotated[str, Meta(min_length=16, pattern=r"^[\x21-\x7e]+$")] | None,
        Meta(
            description="Bearer token that /metrics requires; without it everyone who can reach"
            " the port can read the metrics; better set in the environment",
            extra={"expected": "at least 16 characters without blanks"},
        ),
    ] = None

    def __repr__(self) -> str:
        """Without the token and passwords: settings end up in logs."""
        shown = msgspec.structs.asdict(self)
        shown["notifications"] = redact_notifications(self.notifications)
        shown["metrics_token"] = None if self.metrics_token is None else "***"
        return f"ServerSettings({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


class SignInSettings(msgspec.Struct, frozen=True, kw_only=True):
    passwords: Annotated[bool, Meta(description="Whether users may sign in with a password")] = True


class OidcSettings(msgspec.Struct, frozen=True, kw_only=True):
    issuer: Annotated[
        Annotated[str, Meta(pattern=r"^https?://\S+$")] | None,
        Meta(
            description="Issuer of an OpenID provider for signing in; without it there is none",
            extra={"expected": "an address such as https://login.example.com"},
        ),
    ] = None
    client_id: Annotated[str | None, Meta(description="Client id of chatd at the provider")] = None
    client_secret: Annotated[
        str | None, Meta(description="Client secret of chatd; none for a public client")
    ] = None
    name: Annotated[str, Meta(description="Name of the provider on the sign-in page")] = "OpenID"
    scopes: Annotated[str, Meta(description="Scopes to request")] = "openid email profile"
    allowed_domains: Annotated[
        tuple[str, ...], Meta(description="Domains of verified emails that may sign in; none: all")
    ] = ()
    auto_create: Annotated[
        bool, Meta(description="Create an account at the first sign-in of a user")
    ] = False
    link_by_email: Annotated[
        bool, Meta(description="Sign in as the existing user with the same verified email")
    ] = False
    trust_email: Annotated[
        bool,
        Meta(
            description="Treat emails as verified if the provider never says `email_verified`; only"
            " for one whose users cannot choose their email"
        ),
    ] = False
    groups_claim: Annotated[
        str | None, Meta(description="Claim with the names of the user's groups")
    ] = None
    groups: Annotated[
        tuple[str, ...], Meta(description="Groups of chatd that follow the claim at each sign-in")
    ] = ()
    admin_groups: Annotated[
        tuple[str, ...], Meta(description="Groups of the claim with users who are administrators")
    ] = ()
    viewer_groups: Annotated[
        tuple[str, ...], Meta(description="Groups of the claim with users who are viewers")
    ] = ()

    def __repr__(self) -> str:
        return f"OidcSettings(issuer={self.issuer!r}, client_id={self.client_id!r})"


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    slots: Annotated[
        int, Meta(ge=1, le=10_000, description="Chats that this process may run at once")
    ] = 1000
    child_slots: Annotated[
        int,
        Meta(ge=1, le=10_000, description="Subagents that this process may run at once"),
    ] = 1000
    drain_s: Annotated[
        float,
        Meta(
            ge=0,
            le=3600,
            description="How long running steps may take to finish at exit; the platform must wait"
            " longer before it kills the process",
        ),
    ] = 60.0


RequestRate = Annotated[int, Meta(ge=0, le=1_000_000)]
RunningLimit = Annotated[int, Meta(ge=0, le=1_000_000)]
Days = Annotated[int, Meta(ge=0, le=3650)]
AnswerHours = Annotated[int, Meta(ge=1, le=8760)]


class LimitSettings(msgspec.Struct, frozen=True, kw_only=True):
    running: Annotated[
        RunningLimit,
        Meta(description="Chats that may run at once on all replicas; others wait; 0: no limit"),
    ] = 0
    running_per_user: Annotated[
        RunningLimit, Meta(description="The same for each user; 0: no limit")
    ] = 0
    running_subagents: Annotated[
        RunningLimit,
        Meta(description="Subagents that may run at once on all replicas; 0: no limit"),
    ] = 0
    running_subagents_per_user: Annotated[
        RunningLimit, Meta(description="The same for each user; 0: no limit")
    ] = 0
    running_subagents_per_chat: Annotated[
        int, Meta(ge=1, le=1000, description="Subagents of one chat that may run at once")
    ] = 10
    subagents_per_chat: Annotated[
        int, Meta(ge=1, le=10_000, description="Subagents that one chat may start in all")
    ] = 100
    calls_per_answer: Annotated[
        int,
        Meta(
            ge=1,
            le=1000,
            description="Tool calls of one answer that run; the same number of further calls get an"
            " error result, and later ones are dropped",
        ),
    ] = 128
    concurrent_calls: Annotated[
        int, Meta(ge=1, le=1000, description="Tool calls of one chat that may run at once")
    ] = 32
    step_output_bytes: Annotated[
        int,
        Meta(
            ge=16 * 1024,
            le=16 * 1024 * 1024,
            description="Bytes of all tool results of one step together; longer ones are cut",
        ),
    ] = 100 * 1024
    streams_per_user: Annotated[
        int,
        Meta(ge=1, le=100_000, description="Open event streams and WebSockets of each user, here"),
    ] = 1000
    requests_per_minute: Annotated[
        RequestRate,
        Meta(description="Requests of each user per minute, here, administrators excepted; 0: all"),
    ] = 512
    new_chats_per_minute: Annotated[
        RequestRate, Meta(description="New chats of each user per minute, likewise")
    ] = 30
    uploads_per_minute: Annotated[
        RequestRate, Meta(description="Uploaded files of each user per minute, likewise")
    ] = 12
    topics_per_socket: Annotated[
        int, Meta(ge=1, le=10_000, description="Chats and lists that one WebSocket may follow")
    ] = 100
    spend_micros: Annotated[
        int,
        Meta(
            ge=0,
            le=10**15,
            description="Spend limit of each user per period, in millionths of a USD; 0: no limit",
        ),
    ] = 0
    spend_period: Annotated[
        Literal["day", "week", "month"],
        Meta(description="Period of the spend limit; it starts at 00:00 UTC"),
    ] = "month"
    unchecked: Annotated[
        Literal["allow", "refuse"],
        Meta(
            description="Whether models are called while the spend of a user cannot be read:"
            " far from the limit, or not at all"
        ),
    ] = "allow"
    unpriced: Annotated[
        Literal["allow", "refuse"],
        Meta(description="Whether models without a price may be used while there is a spend limit"),
    ] = "allow"


class ChatSettings(msgspec.Struct, frozen=True, kw_only=True):
    titles: Annotated[
        bool, Meta(description="Generate a title for each new chat with a small model")
    ] = True
    interrupt_subagents: Annotated[
        Literal["continue", "stop"],
        Meta(description="What the subagents of an interrupted chat do, if the request leaves it"),
    ] = "continue"
    auto_archive_days: Annotated[
        Days, Meta(description="Archive chats idle for this many days; 0 disables")
    ] = 0
    retention_days: Annotated[
        Days, Meta(description="Delete chats archived this many days ago; 0 disables")
    ] = 0
    deleted_messages_days: Annotated[
        Days,
        Meta(
            description="Remove the content of messages that an edit or a repeated turn replaced so"
            " many days ago, with the version that they are of; 0 disables"
        ),
    ] = 30
    usage_days: Annotated[
        Days,
        Meta(
            description="Delete the records of single model calls after so many days; the daily"
            " sums stay; 0 disables"
        ),
    ] = 400
    debug_days: Annotated[
        Days,
        Meta(description="Delete debug records of model calls after so many days; 0 disables"),
    ] = 30
    question_hours: Annotated[
        AnswerHours,
        Meta(description="How long a chat waits for the answer to a question of the model"),
    ] = 72
    approval_hours: Annotated[
        AnswerHours,
        Meta(description="How long a chat waits for the approval of a tool call"),
    ] = 72
    outage_hours: Annotated[
        int,
        Meta(
            ge=0,
            le=720,
            description="How long a chat waits for a provider that is down or overloaded before its"
            " turn fails; at least 25 attempts are made",
        ),
    ] = 24
    max_steps: Annotated[
        int,
        Meta(ge=1, le=10_000, description="How many answers of the model a turn may have"),
    ] = 1200
    compaction_ceiling_tokens: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000_000,
            description="Summarize a chat when its prompt has so many tokens, also in a larger"
            " context window; 0 disables",
        ),
    ] = 200_000
    compaction_kept_tokens: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description="How many tokens of the newest messages a summary leaves word for word, at"
            " most a quarter of the prompt",
        ),
    ] = 20_000
    clear_results_steps: Annotated[
        int,
        Meta(
            ge=0,
            le=10_000,
            description="Shorten old, large tool results for the model when the prompt is nearly"
            " long enough for a summary, at most once in so many steps; 0 disables",
        ),
    ] = 20


class AuditSettings(msgspec.Struct, frozen=True, kw_only=True):
    retention_days: Annotated[
        Days, Meta(description="Delete entries of the audit log after so many days; 0 disables")
    ] = 400


class DemoSettings(msgspec.Struct, frozen=True, kw_only=True):
    kill_worker: Annotated[
        bool,
        Meta(
            description="Administrators may start and kill a worker process from the page, on this"
            " machine and while the demo model is the default"
        ),
    ] = True


class FileSettings(msgspec.Struct, frozen=True, kw_only=True):
    store: Annotated[
        Literal["database", "s3"],
        Meta(description="Where the bytes of new files are kept; earlier files stay readable"),
    ] = "database"
    max_bytes: Annotated[
        int, Meta(ge=1, le=100 * 1024 * 1024, description="Maximum size of an uploaded file")
    ] = 20 * 1024 * 1024
    user_bytes: Annotated[
        int, Meta(ge=0, le=10**15, description="Maximum size of all files of each user together")
    ] = 1024 * 1024 * 1024
    user_files: Annotated[
        int, Meta(ge=0, le=10_000_000, description="Maximum number of files of each user")
    ] = 1000
    web_images: Annotated[
        Literal["public", "all", "off"],
        Meta(
            description="From where the server fetches a web image when a reader of a chat presses"
            " it: public addresses, also private networks, or nowhere"
        ),
    ] = "public"
    s3_endpoint: Annotated[
        Annotated[str, Meta(pattern="^https?://.")] | None,
        Meta(
            description="Address of an S3-compatible server, without the bucket",
            extra={"expected": "an address such as https://s3.eu-central-1.amazonaws.com"},
        ),
    ] = None
    s3_bucket: Annotated[str | None, Meta(description="Bucket for files; it must exist")] = None
    s3_region: Annotated[str, Meta(min_length=1, description="Region of the bucket")] = "us-east-1"
    s3_prefix: Annotated[str, Meta(description="Beginning of the names of all objects")] = ""
    s3_access_key_id: Annotated[str | None, Meta(description="Key id for the bucket")] = None
    s3_secret_access_key: Annotated[
        str | None, Meta(description="Secret key for the bucket; better set in the environment")
    ] = None

    def __repr__(self) -> str:
        """Without the secret key: settings end up in logs."""
        shown = msgspec.structs.asdict(self)
        shown["s3_secret_access_key"] = None if self.s3_secret_access_key is None else "***"
        return f"FileSettings({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


class WorkspaceSettings(msgspec.Struct, frozen=True, kw_only=True):
    enabled: Annotated[
        bool, Meta(description="Whether chats get tools that act in workspaces on this host")
    ] = True
    allow_unsafe: Annotated[
        bool,
        Meta(description="Run workspaces without isolation from this host (unsafe)"),
    ] = False
    roots: Annotated[
        tuple[Path, ...],
        Meta(description="Directories of this host that templates may copy, clone or mount"),
    ] = ()
    git_private_hosts: Annotated[
        tuple[str, ...],
        Meta(
            description="Git hosts that may be on this host or in private networks, when chatd asks"
            " them for pull requests"
        ),
    ] = ()
    ttl_s: Annotated[
        int,
        Meta(
            ge=0,
            le=30 * 86_400,
            description="How long a workspace may run without activity; 0: the template decides",
        ),
    ] = 0
    retention_days: Annotated[
        Days,
        Meta(
            description="Delete the records of deleted workspaces, and old builds with their logs,"
            " after so many days; 0 disables"
        ),
    ] = 90
    build_slots: Annotated[
        int,
        Meta(
            ge=1,
            le=100,
            description="Workspaces that this process starts at once; stops and deletions "
            "have as many slots each. A single user gets at most all slots but one",
        ),
    ] = 4
    max_copy_bytes: Annotated[
        int,
        Meta(
            ge=1 << 20,
            le=4 << 30,
            description="How large the files of a workspace may be that is copied with a fork of"
            " its chat",
        ),
    ] = 2 << 30
    desktop_recordings: Annotated[
        bool,
        Meta(
            description="Record what subagents do at the desktop of a workspace that has ffmpeg,"
            " and put the video into the chat that waits for them"
        ),
    ] = True
    runners_per_user: Annotated[
        int,
        Meta(
            ge=1,
            le=1000,
            description="How many runners of one user may be connected at once, such as those of"
            " chatd run --here; those of administrators' tokens do not count",
        ),
    ] = 20
    clone_timeout_s: Annotated[
        float, Meta(gt=0, le=3600, description="How long a template's Git clone may take")
    ] = 300.0


class WebhookSettings(msgspec.Struct, frozen=True, kw_only=True):
    private_addresses: Annotated[
        bool,
        Meta(
            description="Whether webhooks of users may call this host and private networks; then a"
            " user can reach services there"
        ),
    ] = False
    push_contact: Annotated[
        Annotated[str, Meta(pattern=r"^(mailto:[^\s@]+@[^\s@]+|https://\S+)$")] | None,
        Meta(
            description="How the push services of browser vendors reach the operator; without it"
            " the https URL of the server",
            extra={"expected": "an address such as mailto:ops@example.com"},
        ),
    ] = None


class HookSettings(msgspec.Struct, frozen=True, kw_only=True):
    private_addresses: Annotated[
        bool,
        Meta(
            description="Whether hooks, which only administrators add, may be on this host and in"
            " private networks"
        ),
    ] = False


class RepositorySettings(msgspec.Struct, frozen=True, kw_only=True):
    private_addresses: Annotated[
        bool,
        Meta(
            description="Whether git hosts whose events start chats may be on this host and in"
            " private networks, and be reached without TLS"
        ),
    ] = False


class SlackSettings(msgspec.Struct, frozen=True, kw_only=True):
    api_url: Annotated[
        str,
        Meta(
            description="The address of Slack's Web API, for a proxy or a test",
            pattern=r"^https?://[^\s?#]+$",
        ),
    ] = "https://slack.com/api"
    private_addresses: Annotated[
        bool,
        Meta(
            description="Whether that address may be on this host and in private networks, and be"
            " reached without TLS"
        ),
    ] = False


class McpSettings(msgspec.Struct, frozen=True, kw_only=True):
    private_hosts: Annotated[
        tuple[str, ...],
        Meta(
            description="Host names and addresses of MCP servers and their authorization servers"
            " that may be on this host or in private networks, also without https"
        ),
    ] = ()


class ProviderEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[providers]]` in chatd.toml. `api_key_env` names a variable with the key. `headers` are
    sent with every request and may contain keys; `region` is an AWS region. `proxy` is a URL, or
    `none` for no proxy. The files are PEM files with absolute paths."""

    name: Annotated[str, Meta(min_length=1)]
    kind: Annotated[str, Meta(min_length=1)]
    base_url: str | None = None
    api_key: str | None = None
    api_key_env: str | None = None
    headers: dict[str, str] = {}
    region: str | None = None
    proxy: str | None = None
    ca_file: str | None = None
    client_cert: str | None = None
    client_key: str | None = None
    connect_timeout_s: Annotated[float, Meta(gt=0, le=300)] | None = None
    silence_timeout_s: Annotated[float, Meta(ge=1, le=86_400)] | None = None
    answer_timeout_s: Annotated[float, Meta(ge=1, le=86_400)] | None = None

    def __repr__(self) -> str:
        return f"ProviderEntry(name={self.name!r}, kind={self.kind!r}, base_url={self.base_url!r})"


class PriceEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """USD per million tokens; `web_search` is for 1,000 searches."""

    input: str | float | None = None
    output: str | float | None = None
    cache_read: str | float | None = None
    cache_write: str | float | None = None
    web_search: str | float | None = None


class EffortEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`default` is for messages that give no effort, `max` the highest that a message may ask
    for."""

    default: str | None = None
    max: str | None = None


class ModelEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[models]]` in chatd.toml. `provider` names a provider entry; `model` is the provider's name
    for the model. `file_inputs` are the files that the model takes; without it, all that its API
    takes. `fallbacks` name the models that answer if this one cannot."""

    name: Annotated[str, Meta(min_length=1)]
    provider: str
    model: str
    default: bool = False
    context_limit: Annotated[int, Meta(gt=0)] | None = None
    compaction_threshold: Annotated[int, Meta(ge=0, le=100)] | None = None
    max_output_tokens: Annotated[int, Meta(gt=0)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    reasoning_effort: str | EffortEntry | None = None
    file_inputs: tuple[Literal["image", "pdf"], ...] | None = None
    fallbacks: tuple[Fallback, ...] = ()
    options: dict[str, Any] = {}  # the provider checks them
    prices: PriceEntry | None = None


class McpOauthEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[mcp_servers.oauth]`: a client that was registered by hand. `client_secret_env` names a
    variable with its secret."""

    client_id: Annotated[str, Meta(min_length=1)]
    client_secret: str | None = None
    client_secret_env: str | None = None
    authorization_url: str
    token_url: str
    revocation_url: str | None = None
    token_auth: Literal["none", "client_secret_basic", "client_secret_post"] | None = None

    def __repr__(self) -> str:
        return f"McpOauthEntry(client_id={self.client_id!r})"


class McpServerEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[mcp_servers]]` in chatd.toml, with the fields of the API. `api_key_env` names a variable
    with the key."""

    slug: Annotated[str, Meta(min_length=1, max_length=32, pattern=r"^[a-z0-9]+([-_][a-z0-9]+)*$")]
    url: Annotated[str, Meta(min_length=1)]
    display_name: str = ""
    description: str = ""
    transport: Literal["streamable_http", "sse"] = "streamable_http"
    auth: Literal["none", "oauth2", "api_key", "custom_headers"] = "none"
    enabled: bool = True
    availability: Literal["force_on", "default_on", "default_off"] = "default_off"
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    model_intent: bool = False
    allow_in_plan_mode: bool = False
    api_key_header: str | None = None
    api_key: str | None = None
    api_key_env: str | None = None
    headers: dict[str, str] = {}
    oauth: McpOauthEntry | None = None
    scopes: str = ""

    def __repr__(self) -> str:
        return f"McpServerEntry(slug={self.slug!r})"


class OtelSettings(msgspec.Struct, frozen=True, kw_only=True):
    traces: Annotated[
        bool,
        Meta(description="Send traces of turns to an OpenTelemetry collector; needs chatd[otel]"),
    ] = False
    metrics: Annotated[
        bool, Meta(description="Send metrics of model calls there; needs chatd[otel]")
    ] = False
    endpoint: Annotated[
        Annotated[str, Meta(pattern="^https?://.")] | None,
        Meta(
            description="Address of the collector (OTLP over HTTP); without it the OTEL_* variables"
            " decide",
            extra={"expected": "an address such as http://127.0.0.1:4318"},
        ),
    ] = None
    sample: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        Meta(description="Share of the turns that are traced; without it OTEL_TRACES_SAMPLER"),
    ] = None
    content: Annotated[
        bool,
        Meta(
            description="Also send arguments and results of tools, and texts of errors; they may"
            " contain secrets"
        ),
    ] = False


class BackupSettings(msgspec.Struct, frozen=True, kw_only=True):
    every_hours: Annotated[
        float,
        Meta(
            ge=0,
            le=8760,
            description="Make a backup every so many hours, once for all replicas; 0: none",
        ),
    ] = 0.0
    directory: Annotated[
        str | None,
        Meta(
            description="Directory for these backups, for this deployment alone; without it"
            " `backups` in the data directory"
        ),
    ] = None
    keep: Annotated[
        int, Meta(ge=1, le=1000, description="How many of them to keep; older ones are removed")
    ] = 7
    passphrase: Annotated[
        Annotated[str, Meta(min_length=8)] | None,
        Meta(
            description="Encrypt backups with this passphrase; better set in the environment",
            extra={"expected": "at least 8 characters"},
        ),
    ] = None
    workspaces: Annotated[
        bool, Meta(description="Whether they contain the files of workspaces on this host")
    ] = False

    def __repr__(self) -> str:
        """Without the passphrase: settings end up in logs."""
        return f"BackupSettings(every_hours={self.every_hours}, directory={self.directory!r})"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    data_dir: Annotated[Path, Meta(description="Directory for data that must be kept")]
    database: DatabaseSettings = DatabaseSettings()
    log: LogSettings = LogSettings()
    server: ServerSettings = ServerSettings()
    sign_in: SignInSettings = SignInSettings()
    oidc: OidcSettings = OidcSettings()
    worker: WorkerSettings = WorkerSettings()
    limits: LimitSettings = LimitSettings()
    chats: ChatSettings = ChatSettings()
    audit: AuditSettings = AuditSettings()
    backup: BackupSettings = BackupSettings()
    otel: OtelSettings = OtelSettings()
    demo: DemoSettings = DemoSettings()
    files: FileSettings = FileSettings()
    workspaces: WorkspaceSettings = WorkspaceSettings()
    webhooks: WebhookSettings = WebhookSettings()
    hooks: HookSettings = HookSettings()
    repositories: RepositorySettings = RepositorySettings()
    slack: SlackSettings = SlackSettings()
    mcp: McpSettings = McpSettings()
    templates: Annotated[
        tuple[dict[str, Any], ...],  # the workspaces package checks them
        Meta(description="Templates of workspaces, as [[templates]] tables"),
    ] = ()
    providers: Annotated[
        tuple[ProviderEntry, ...], Meta(description="Model APIs, as [[providers]] tables")
    ] = ()
    models: Annotated[tuple[ModelEntry, ...], Meta(description="Models, as [[models]] tables")] = ()
    mcp_servers: Annotated[
        tuple[McpServerEntry, ...], Meta(description="MCP servers, as [[mcp_servers]] tables")
    ] = ()


def redact_url(url: str) -> str:
    """Redacts too much rather than too little: a password may contain any character."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return "***"
    rest = re.sub(r"^([^:@/?]*):.*@", r"\1:***@", rest, flags=re.DOTALL)
    rest = re.sub(r"([?&][^=&]*pass[^=&]*=)[^&]*", r"\1***", rest, flags=re.IGNORECASE)
    return f"{scheme}://{rest}"


def redact_notifications(address: str) -> str:
    """Redact the user info even without a colon: a user alone is a token."""
    return re.sub(r"://.*@", "://***@", address, flags=re.DOTALL)

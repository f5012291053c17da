"""What clients show of a server besides the messages of a chat: only the fields that are used.

A reply is read leniently: a field that a server of another version does not send has its default,
and one that it sends in addition is ignored. A test compares the fields with the API's description
of the operations that reply them, and reads its examples.
"""

from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import Final, Generic, TypeVar
from uuid import UUID

from msgspec import Raw, Struct

from chatd.domain.ids import (
    ChatId,
    CredentialId,
    FileId,
    GroupId,
    McpServerId,
    MessageId,
    ModelConfigId,
    ProjectId,
    UserId,
    WorkspaceId,
)
from chatd.domain.tool_policy.rules import ToolRule

T = TypeVar("T")
NEVER: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Page(Struct, Generic[T], frozen=True, kw_only=True):
    items: tuple[T, ...]
    has_more: bool = False
    next_cursor: str | None = None


class User(Struct, frozen=True, kw_only=True):
    id: UserId
    username: str = ""
    email: str | None = None
    name: str = ""
    role: str = ""


class Me(Struct, frozen=True, kw_only=True):
    """`scopes` None: everything that the user may do."""

    user: User
    credential: str = ""
    scopes: tuple[str, ...] | None = None
    expires_at: datetime | None = None
    restored_from: datetime | None = None


class SignedIn(Struct, frozen=True, kw_only=True):
    """A session of a browser."""

    csrf_token: str = ""


class Token(Struct, frozen=True, kw_only=True):
    id: CredentialId
    name: str = ""
    prefix: str = ""
    scopes: tuple[str, ...] | None = None
    created_at: datetime = NEVER
    expires_at: datetime | None = None
    last_used_at: datetime | None = None


class CreatedToken(Token, frozen=True, kw_only=True):
    token: str = ""


class Error(Struct, frozen=True, kw_only=True):
    """Why a chat stopped."""

    message: str = ""
    kind: str = "generic"
    detail: str | None = None
    provider: str | None = None
    retryable: bool = False
    status_code: int | None = None


class Action(Struct, frozen=True, kw_only=True):
    """What a chat waits for."""

    kinds: tuple[str, ...] = ()
    calls: int = 0
    summary: str = ""


class ChatDiff(Struct, frozen=True, kw_only=True):
    branch: str = ""
    base: str = ""
    additions: int = 0
    deletions: int = 0
    changed_files: int = 0


class Chat(Struct, frozen=True, kw_only=True):
    """`is_owner`, `shared` and `has_unread` of None: the reply does not say."""

    id: ChatId
    owner_id: UserId | None = None
    owner_username: str | None = None
    is_owner: bool | None = None
    shared: bool | None = None
    root_chat_id: ChatId | None = None
    parent_chat_id: ChatId | None = None
    title: str = ""
    status: str = "waiting"
    action: Action | None = None
    action_summary: str | None = None
    plan_ready: bool = False
    archived: bool = False
    last_error: Error | None = None
    pin_order: int = 0
    labels: Mapping[str, str] = {}
    queue_len: int = 0
    queue_held: bool = False
    version: int = 0
    created_at: datetime = NEVER
    updated_at: datetime = NEVER
    last_model_config_id: ModelConfigId | None = None
    reasoning_effort: str | None = None
    workspace_id: WorkspaceId | None = None
    mode: str | None = None
    max_cost_micros: int | None = None
    mcp_server_ids: tuple[McpServerId, ...] | None = None
    project_id: ProjectId | None = None
    last_message_id: MessageId | None = None
    last_read_message_id: MessageId | None = None
    has_unread: bool | None = None
    diff_status: ChatDiff | None = None


class WorkspaceMcpServer(Struct, frozen=True, kw_only=True):
    """An MCP server that a chat's workspace declares."""

    name: str = ""
    tools: int = 0
    error: str = ""


class ChatDetail(Chat, frozen=True, kw_only=True):
    """A chat that was read by itself."""

    workspace_mcp_servers: tuple[WorkspaceMcpServer, ...] = ()


class SearchMatch(Struct, frozen=True, kw_only=True):
    chat_id: ChatId
    message_id: MessageId | None = None
    text: str = ""
    highlights: tuple[tuple[int, int], ...] = ()


class ListedChat(Chat, frozen=True, kw_only=True):
    """A chat of the list, with its subagents."""

    children: tuple[Chat, ...] = ()
    match: SearchMatch | None = None


class QueuedContent(Struct, frozen=True, kw_only=True):
    """A message as it is in the queue, which may differ from what was sent."""

    content: tuple[Raw, ...] = ()


class Sent(Struct, frozen=True, kw_only=True):
    """The reply to a message."""

    chat_id: ChatId
    version: int = 0
    queued: bool = False
    message_id: int | None = None
    queue_id: int | None = None
    queued_message: QueuedContent | None = None


class MessageVersion(Struct, frozen=True, kw_only=True):
    """A message with which a line begins; `text` is the beginning of its text."""

    message_id: int = 0
    created_at: datetime | None = None
    model_config_id: UUID | None = None
    text: str = ""


class VersionGroup(Struct, frozen=True, kw_only=True):
    """`message_id` is the version that is shown; the oldest is the first."""

    message_id: int = 0
    versions: tuple[MessageVersion, ...] = ()


class MessagePage(Struct, frozen=True, kw_only=True):
    """`items` may have parts that this client does not know: `frames.read_message` reads them."""

    items: tuple[Raw, ...]
    has_more: bool = False
    next_cursor: str | None = None
    version: int = 0


class StoredFile(Struct, frozen=True, kw_only=True):
    id: FileId
    name: str | None = None
    media_type: str = ""
    size_bytes: int = 0
    sha256: str = ""
    created_at: datetime = NEVER


class EffortRange(Struct, frozen=True, kw_only=True):
    default: str | None = None
    max: str | None = None


class ListedModel(Struct, frozen=True, kw_only=True):
    id: ModelConfigId
    name: str = ""
    provider: str = ""
    model: str = ""
    display_name: str = ""
    enabled: bool = True
    is_default: bool = False
    context_limit: int | None = None
    max_output_tokens: int | None = None
    reasoning_effort: EffortRange | None = None


class McpConnection(Struct, frozen=True, kw_only=True):
    state: str = ""
    reason: str | None = None
    connected_at: datetime | None = None
    expires_at: datetime | None = None


class McpServer(Struct, frozen=True, kw_only=True):
    id: McpServerId
    slug: str = ""
    display_name: str = ""
    description: str = ""
    availability: str = ""
    auth: str = ""
    allow_in_plan_mode: bool = False
    connection: McpConnection = McpConnection()


class McpConnectAnswer(Struct, frozen=True, kw_only=True):
    authorization_url: str = ""


class McpDisconnectAnswer(Struct, frozen=True, kw_only=True):
    revoked: bool = False
    failure: str | None = None


class McpTrialTool(Struct, frozen=True, kw_only=True):
    name: str = ""
    is_used: bool = True


class McpTrial(Struct, frozen=True, kw_only=True):
    ok: bool = False
    problem: str = ""
    duration_ms: int = 0
    tools: tuple[McpTrialTool, ...] = ()


# Tool policies


class ToolPolicyState(Struct, frozen=True, kw_only=True):
    """The rules, with the version that a change must name. A rule that this client cannot read
    wholly is an error: a policy is replaced as a whole, and what was not read would be lost."""

    version: int = 0
    rules: tuple[ToolRule, ...] = ()
    may_loosen: bool = False


class ToolTrialCommand(Struct, frozen=True, kw_only=True):
    command: str = ""
    matches: str = ""


class ToolTrial(Struct, frozen=True, kw_only=True):
    """What would happen to a call, and why."""

    action: str = ""
    layer: str | None = None
    rule: ToolRule | None = None
    reason: str = ""
    explanation: str = ""
    commands: tuple[ToolTrialCommand, ...] = ()


# Users, groups and spend limits, for administrators


class UserAccount(User, frozen=True, kw_only=True):
    """A user as an administrator sees it."""

    status: str = ""
    is_service: bool = False
    has_password: bool = False
    created_at: datetime = NEVER
    last_seen_at: datetime | None = None


class Group(Struct, frozen=True, kw_only=True):
    id: GroupId
    name: str = ""
    member_count: int = 0


class UserLimit(Struct, frozen=True, kw_only=True):
    username: str = ""
    spend_limit_micros: int = 0


class GroupLimit(Struct, frozen=True, kw_only=True):
    group_name: str = ""
    member_count: int = 0
    spend_limit_micros: int = 0


class SpendLimits(Struct, frozen=True, kw_only=True):
    """The default of users without another limit; None: there is none."""

    spend_limit_micros: int | None = None
    period: str = ""
    source: str = ""
    unpriced_model_count: int = 0


# What a user chooses from, and what chats have used and changed


class ModelCapabilities(Struct, frozen=True, kw_only=True):
    context_limit: int | None = None
    efforts: tuple[str, ...] | None = None
    images: bool | None = None
    pdfs: bool | None = None


class LearnedContext(Struct, frozen=True, kw_only=True):
    tokens: int = 0
    is_bound: bool = False


class ModelPrices(Struct, frozen=True, kw_only=True):
    """In dollars per million tokens, as decimal text."""

    input: str | None = None
    output: str | None = None


class ModelFallback(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`on`: the reasons for which the model answers; empty: all."""

    model: str = ""
    on: tuple[str, ...] = ()


class ModelChoice(ListedModel, frozen=True, kw_only=True):
    """A model with what a person compares."""

    capabilities: ModelCapabilities = ModelCapabilities()
    learned_context: LearnedContext | None = None
    prices: ModelPrices | None = None
    unpriced: bool = False
    deleted: bool = False
    fallbacks: tuple[ModelFallback, ...] = ()


class ProviderKey(Struct, frozen=True, kw_only=True):
    """A key, with all but its end hidden."""

    id: UUID
    masked: str = ""


class Provider(Struct, frozen=True, kw_only=True):
    id: UUID
    name: str = ""
    kind: str = ""
    enabled: bool = True
    has_api_key: bool = False
    source: str = ""
    base_url: str | None = None


class UserKey(Struct, frozen=True, kw_only=True):
    """A provider that takes keys of users, with the caller's own. `destination` is where the key is
    sent."""

    provider: str = ""
    display_name: str = ""
    destination: str = ""
    key: ProviderKey | None = None


class Diagnosed(Struct, frozen=True, kw_only=True):
    """The result of one check; a newer server may have verdicts that this program does not know."""

    check: str = ""
    verdict: str = ""
    text: str = ""
    remedy: str = ""


class Restore(Struct, frozen=True, kw_only=True):
    """The backup that a deployment was restored from."""

    made_at: datetime | None = None
    restored_at: datetime | None = None
    confirmed_at: datetime | None = None


class Diagnosis(Struct, frozen=True, kw_only=True):
    """What a server found when it examined its deployment."""

    version: str = ""
    time: datetime | None = None
    findings: tuple[Diagnosed, ...] = ()


class Trial(Struct, frozen=True, kw_only=True):
    """The outcome of one small call to a provider."""

    ok: bool = False
    model: str = ""
    duration_ms: int = 0
    explanation: str | None = None
    detail: str | None = None


class OfferedModel(Struct, frozen=True, kw_only=True):
    model: str = ""
    display_name: str = ""
    configured_as: tuple[str, ...] = ()
    suggested: bool = False


class Prompt(Struct, frozen=True, kw_only=True):
    text: str = ""


class WorkspaceBuild(Struct, frozen=True, kw_only=True):
    transition: str = ""
    status: str = ""
    error: str = ""
    waiting_for: str = ""

    @property
    def is_active(self) -> bool:
        return self.status in ("pending", "running", "canceling")


class WorkspaceAgent(Struct, frozen=True, kw_only=True):
    status: str = ""


class Workspace(Struct, frozen=True, kw_only=True):
    id: WorkspaceId
    name: str = ""
    template_id: str = ""
    deleted: bool = False
    latest_build: WorkspaceBuild | None = None
    agents: tuple[WorkspaceAgent, ...] = ()
    network: str | None = None
    directory: str | None = None


class ListeningPort(Struct, frozen=True, kw_only=True):
    port: int = 0
    pid: int = 0
    command: str = ""


class PreviewLink(Struct, frozen=True, kw_only=True):
    url: str = ""
    origin: str = ""
    expires_at: datetime | None = None


class UnpackedFiles(Struct, frozen=True, kw_only=True):
    files: int = 0
    bytes: int = 0
    links: int = 0
    directories: int = 0
    skipped: int = 0
    left_out: tuple[str, ...] = ()
    left_out_count: int = 0


class Template(Struct, frozen=True, kw_only=True):
    id: UUID | None = None
    name: str = ""
    display_name: str = ""
    description: str = ""
    agents_allowed: bool = True
    deprecated: bool = False


class ListedTemplate(Struct, frozen=True, kw_only=True):
    """A template in the list of an administrator."""

    id: UUID
    name: str = ""
    display_name: str = ""
    description: str = ""
    backend: str = ""
    origin: str = "user"
    deprecated: bool = False
    version_number: int = 0
    version_count: int = 0
    workspace_count: int = 0
    pool: str = ""
    desktop: bool = False
    browser: bool = False
    missing_packages: tuple[str, ...] = ()


class ConfiguredTemplate(ListedTemplate, frozen=True, kw_only=True):
    """A template with the content of its active version."""

    icon: str = ""
    agents_allowed: bool = True
    default_ttl_s: int = 0
    activity_bump_s: int = 0
    max_ttl_s: int = 0
    require_active_version: bool = False
    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    readme: str = ""
    parameters: tuple[dict[str, object], ...] = ()
    spec: dict[str, object] = {}


class TemplateVersionLine(Struct, frozen=True, kw_only=True):
    """A version of a template in a list."""

    id: UUID
    number: int = 0
    is_active: bool = False
    workspace_count: int = 0
    created_at: datetime = NEVER


class DirectoryUser(Struct, frozen=True, kw_only=True):
    id: UserId
    username: str = ""
    name: str = ""


class DirectoryGroup(Struct, frozen=True, kw_only=True):
    id: GroupId
    name: str = ""


class Directory(Struct, frozen=True, kw_only=True):
    """Users and groups: found by a search, or those that read a chat."""

    users: tuple[DirectoryUser, ...] = ()
    groups: tuple[DirectoryGroup, ...] = ()


class PublicLink(Struct, frozen=True, kw_only=True):
    id: UUID
    chat_id: ChatId
    chat_title: str = ""
    owner_username: str = ""
    with_tools: bool = False
    with_files: bool = False
    has_newer: bool = False
    expires_at: datetime | None = None


class NewPublicLink(PublicLink, frozen=True, kw_only=True):
    """A new link with its secret, which is shown once."""

    path: str = ""


class PublicLinks(Struct, frozen=True, kw_only=True):
    """The public links of one chat."""

    items: tuple[PublicLink, ...] = ()


class RepositoryChange(Struct, frozen=True, kw_only=True):
    repo_root: str = ""
    branch: str = ""
    base: str = ""
    unified_diff: str = ""
    additions: int = 0
    deletions: int = 0
    changed_files: int = 0
    omitted: str = ""


class ChatChanges(Struct, frozen=True, kw_only=True):
    scope: str = ""
    repositories: tuple[RepositoryChange, ...] = ()


class ChatCost(Struct, frozen=True, kw_only=True):
    """The cost of a chat with its subagents."""

    chat_id: ChatId
    total_cost_micros: int = 0
    call_count: int = 0
    unpriced_call_count: int = 0
    estimated_call_count: int = 0
    max_cost_micros: int | None = None


class SpendStatus(Struct, frozen=True, kw_only=True):
    """What the user has spent in this period, and the limit."""

    is_limited: bool = False
    period: str = ""
    spend_limit_micros: int | None = None
    current_spend_micros: int = 0
    period_end: datetime | None = None


class CostTotal(Struct, frozen=True, kw_only=True):
    """What model calls have cost."""

    total_cost_micros: int = 0
    call_count: int = 0
    unpriced_call_count: int = 0
    total_input_tokens: int = 0
    total_output_tokens: int = 0
    total_cache_read_tokens: int = 0
    total_cache_creation_tokens: int = 0


class CostByModel(CostTotal, frozen=True, kw_only=True):
    model: str = ""
    provider: str = ""


class CostByChat(CostTotal, frozen=True, kw_only=True):
    """The cost of a chat with its subagents."""

    root_chat_id: str = ""
    chat_title: str | None = None


class CostByUser(CostTotal, frozen=True, kw_only=True):
    username: str = ""
    name: str = ""


class CostByDay(CostTotal, frozen=True, kw_only=True):
    day: date | None = None


class CostSummary(CostTotal, frozen=True, kw_only=True):
    """`end_date` is the first day after the period."""

    start_date: date = NEVER.date()
    end_date: date = NEVER.date()
    by_model: tuple[CostByModel, ...] = ()
    by_chat: tuple[CostByChat, ...] = ()
    by_day: tuple[CostByDay, ...] = ()


# Skills


class ListedSkill(Struct, frozen=True, kw_only=True):
    id: UUID
    name: str = ""
    description: str = ""
    updated_at: datetime = NEVER


class Skill(ListedSkill, frozen=True, kw_only=True):
    body: str = ""


# Memory


class Note(Struct, frozen=True, kw_only=True):
    id: UUID
    state: str = "kept"
    text: str = ""
    enabled: bool = True
    project_id: ProjectId | None = None
    chat_id: ChatId | None = None
    created_at: datetime = NEVER
    updated_at: datetime = NEVER


class OwnSettings(Struct, frozen=True, kw_only=True):
    """What these programs read of them."""

    memory: str = "notes"
    memory_allowed: bool = True


# Projects


class Project(Struct, frozen=True, kw_only=True):
    id: ProjectId
    name: str = ""
    instructions: str = ""
    model_config_id: ModelConfigId | None = None
    template_id: UUID | None = None
    role: str = "reader"
    owner_username: str = ""
    member_count: int = 0
    file_count: int = 0
    chat_count: int = 0
    version: int = 0
    updated_at: datetime = NEVER


class ProjectMember(Struct, frozen=True, kw_only=True):
    id: UserId
    username: str = ""
    role: str = "reader"


class ProjectFile(Struct, frozen=True, kw_only=True):
    id: FileId
    name: str = ""
    media_type: str = ""
    size_bytes: int = 0


# Runners


class BackendOffer(Struct, frozen=True, kw_only=True):
    kind: str = ""
    isolation: str = ""
    detail: str = ""


class Runner(Struct, frozen=True, kw_only=True):
    id: str
    name: str = ""
    pool: str = ""
    labels: tuple[str, ...] = ()
    backends: tuple[BackendOffer, ...] = ()
    capacity: int = 0
    running: int = 0
    workspace_count: int = 0
    version: str = ""
    os: str = ""
    arch: str = ""
    connected: bool = False
    connected_at: datetime | None = None
    seen_at: datetime = NEVER
    draining: bool = False
    builtin: bool = False
    owner: str | None = None
    token: str | None = None
    orphans: tuple[str, ...] = ()
    version_gap: str | None = None


class RunnerWorkspace(Struct, frozen=True, kw_only=True):
    id: WorkspaceId
    name: str = ""
    owner: str | None = None
    status: str = ""
    last_used_at: datetime = NEVER


class WaitingBuild(Struct, frozen=True, kw_only=True):
    id: UUID
    workspace: str = ""
    owner: str | None = None
    transition: str = ""
    created_at: datetime = NEVER
    reason: str = ""


class RunnerDetail(Runner, frozen=True, kw_only=True):
    workspaces: tuple[RunnerWorkspace, ...] = ()
    waiting_builds: tuple[WaitingBuild, ...] = ()


class RunnerToken(Struct, frozen=True, kw_only=True):
    id: UUID
    name: str = ""
    prefix: str = ""
    pool: str = ""
    runners: int = 0
    created_at: datetime = NEVER
    expires_at: datetime | None = None
    expired: bool = False
    last_used_at: datetime | None = None


class HostCredential(Struct, frozen=True, kw_only=True):
    """A credential without its secret, which only the server has."""

    id: UUID
    scope: str = "user"
    group: str | None = None
    host: str = ""
    port: int = 443
    path: str = "/"
    scheme: str = "bearer"
    header: str = ""
    username: str = ""
    created_at: datetime = NEVER


class HookConfig(Struct, frozen=True, kw_only=True):
    """A hook, without its secret."""

    id: UUID
    name: str = ""
    url: str = ""
    events: tuple[str, ...] = ()
    failure: str = "closed"
    timeout_ms: int = 0
    template_id: UUID | None = None
    template_name: str | None = None
    enabled: bool = True


class NewHook(HookConfig, frozen=True, kw_only=True):
    secret: str = ""


class RepositoryConnection(Struct, frozen=True, kw_only=True):
    """A connection to repositories of a git host, without its secrets."""

    id: UUID
    name: str = ""
    vendor: str = ""
    url: str = ""
    events_path: str = ""
    repositories: tuple[str, ...] = ()
    mention: str = ""
    label: str = ""
    template_id: UUID | None = None
    template_name: str = ""
    model_id: UUID | None = None
    user_id: UUID | None = None
    username: str = ""
    allowed: tuple[str, ...] = ()
    check_rounds: int = 0
    enabled: bool = True
    app_id: str | None = None
    problem: str | None = None


class NewRepositoryConnection(RepositoryConnection, frozen=True, kw_only=True):
    secret: str = ""


class RepositoryTrial(Struct, frozen=True, kw_only=True):
    ok: bool = False
    login: str = ""
    reason: str = ""


class RepositoryEvent(Struct, frozen=True, kw_only=True):
    id: int
    kind: str = ""
    repository: str = ""
    number: int = 0
    sender: str = ""
    outcome: str = ""
    detail: str = ""
    attempts: int = 0
    chat_id: UUID | None = None
    created_at: datetime = NEVER


class SlackConnection(Struct, frozen=True, kw_only=True):
    """A connection to Slack, without its tokens."""

    id: UUID
    name: str = ""
    team_name: str = ""
    template_id: UUID | None = None
    template_name: str | None = None
    project_id: UUID | None = None
    project_name: str | None = None
    model_id: UUID | None = None
    match_email: bool = False
    enabled: bool = True
    connected_at: datetime | None = None
    problem: str | None = None


class SlackTrial(Struct, frozen=True, kw_only=True):
    ok: bool = False
    team: str = ""
    bot: str = ""
    missing_scopes: tuple[str, ...] = ()
    reason: str = ""


class SlackEvent(Struct, frozen=True, kw_only=True):
    id: int
    kind: str = ""
    channel: str = ""
    slack_user: str = ""
    outcome: str = ""
    detail: str = ""
    attempts: int = 0
    chat_id: UUID | None = None
    created_at: datetime = NEVER


class SlackLink(Struct, frozen=True, kw_only=True):
    id: UUID
    connection_name: str = ""
    team_name: str = ""
    slack_user: str = ""
    slack_name: str = ""
    created_at: datetime = NEVER


class SlackLinkCode(Struct, frozen=True, kw_only=True):
    code: str = ""
    expires_at: datetime = NEVER


class HookTrial(Struct, frozen=True, kw_only=True):
    ok: bool = False
    decision: str | None = None
    reason: str = ""
    duration_ms: int = 0


class CredentialedHost(Struct, frozen=True, kw_only=True):
    host: str = ""
    port: int = 443
    path: str = "/"
    scope: str = "user"
    group: str | None = None
    git_only: bool = False


class RefusedHost(Struct, frozen=True, kw_only=True):
    host: str = ""
    port: int = 0
    reason: str = ""
    count: int = 0
    last_at: datetime = NEVER


class WorkspaceNetwork(Struct, frozen=True, kw_only=True):
    mode: str = "none"
    allow: tuple[str, ...] = ()
    credentials: tuple[CredentialedHost, ...] = ()
    refusals: tuple[RefusedHost, ...] = ()
    refusals_unknown: str | None = None


class CreatedRunnerToken(RunnerToken, frozen=True, kw_only=True):
    token: str = ""

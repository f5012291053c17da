"""What a user chooses from while writing a message, and what a chat has used and changed. Read
leniently, as `resources`."""

from datetime import datetime
from typing import ClassVar
from uuid import UUID

from msgspec import Struct

from chatd.client.resources import ListedModel
from chatd.domain.ids import ChatId, GroupId, UserId, WorkspaceId


class ModelCapabilities(Struct, frozen=True, kw_only=True):
    api_name: ClassVar[str] = "ModelCapabilities"

    context_limit: int | None = None
    efforts: tuple[str, ...] | None = None
    images: bool | None = None
    pdfs: bool | None = None


class LearnedContext(Struct, frozen=True, kw_only=True):
    api_name: ClassVar[str] = "LearnedContext"

    tokens: int = 0
    is_bound: bool = False


class ModelPrices(Struct, frozen=True, kw_only=True):
    """In dollars per million tokens, as decimal text."""

    api_name: ClassVar[str] = "ModelPrices"

    input: str | None = None
    output: str | None = None


class ModelChoice(ListedModel, frozen=True, kw_only=True):
    """A model with what a person compares."""

    api_name: ClassVar[str] = "ModelReply"

    capabilities: ModelCapabilities = ModelCapabilities()
    learned_context: LearnedContext | None = None
    prices: ModelPrices | None = None
    unpriced: bool = False
    deleted: bool = False


class Provider(Struct, frozen=True, kw_only=True):
    api_name: ClassVar[str] = "ProviderReply"

    id: UUID
    name: str = ""
    kind: str = ""
    enabled: bool = True
    has_api_key: bool = False
    source: str = ""
    base_url: str | None = None


class Trial(Struct, frozen=True, kw_only=True):
    """The outcome of one small call to a provider."""

    api_name: ClassVar[str] = "TrialReply"

    ok: bool = False
    model: str = ""
    duration_ms: int = 0
    explanation: str | None = None
    detail: str | None = None


class OfferedModel(Struct, frozen=True, kw_only=True):
    api_name: ClassVar[str] = "OfferedModelReply"

    model: str = ""
    suggested: bool = False


class Prompt(Struct, frozen=True, kw_only=True):
    api_name: ClassVar[str] = "ListedPrompt"

    text: str = ""


class Workspace(Struct, frozen=True, kw_only=True):
    api_name: ClassVar[str] = "WorkspaceReply"

    id: WorkspaceId
    name: str = ""
    deleted: bool = False


class Template(Struct, frozen=True, kw_only=True):
    api_name: ClassVar[str] = "TemplateItem"

    name: str = ""
    display_name: str = ""
    description: str = ""
    agents_allowed: bool = True
    deprecated: bool = False


class DirectoryUser(Struct, frozen=True, kw_only=True):
    api_name: ClassVar[str] = "DirectoryUser"

    id: UserId
    username: str = ""
    name: str = ""


class DirectoryGroup(Struct, frozen=True, kw_only=True):
    api_name: ClassVar[str] = "DirectoryGroup"

    id: GroupId
    name: str = ""


class Directory(Struct, frozen=True, kw_only=True):
    """Users and groups: found by a search, or those that read a chat."""

    api_name: ClassVar[str] = "DirectoryReply"

    users: tuple[DirectoryUser, ...] = ()
    groups: tuple[DirectoryGroup, ...] = ()


class RepositoryChange(Struct, frozen=True, kw_only=True):
    api_name: ClassVar[str] = "ScopedDiff"

    repo_root: str = ""
    branch: str = ""
    base: str = ""
    unified_diff: str = ""
    additions: int = 0
    deletions: int = 0
    changed_files: int = 0
    omitted: str = ""


class ChatChanges(Struct, frozen=True, kw_only=True):
    api_name: ClassVar[str] = "ChatDiffReply"

    scope: str = ""
    repositories: tuple[RepositoryChange, ...] = ()


class ChatCost(Struct, frozen=True, kw_only=True):
    """Of a chat with its subagents."""

    api_name: ClassVar[str] = "ChatCostReply"

    chat_id: ChatId
    total_cost_micros: int = 0
    call_count: int = 0
    unpriced_call_count: int = 0
    estimated_call_count: int = 0
    max_cost_micros: int | None = None


class SpendStatus(Struct, frozen=True, kw_only=True):
    """What the user has spent in this period, and the limit."""

    api_name: ClassVar[str] = "SpendStatusReply"

    is_limited: bool = False
    period: str = ""
    spend_limit_micros: int | None = None
    current_spend_micros: int = 0
    period_end: datetime | None = None

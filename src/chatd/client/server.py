"""`ServerApi`: a method for each operation of the API that chatd's own programs use.

A method has the name of its operation in the API's description; a test compares paths, parameters,
bodies and replies with it. Nothing is sent before the result is awaited (`calls.Call`).
"""

import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from importlib import metadata
from types import NoneType
from typing import BinaryIO, Final, Literal, TypeVar
from urllib.parse import quote, urlsplit
from urllib.request import getproxies, proxy_bypass
from uuid import UUID

import aiohttp
import msgspec
from aiohttp.abc import AbstractCookieJar

from chatd.client.calls import (
    Call,
    Download,
    ListCall,
    Operation,
    QueryValue,
    Requests,
    UploadedFile,
    UploadedStream,
)
from chatd.client.drafts import (
    CallAnswer,
    ChatChange,
    Draft,
    EditBody,
    InputPart,
    create_body,
    send_body,
)
from chatd.client.errors import ApiError, ServerUnreachable, Validation
from chatd.client.exchange import ServerAddress, is_loopback
from chatd.client.resources import (
    Chat,
    ChatChanges,
    ChatCost,
    ChatDetail,
    ConfiguredTemplate,
    CostByUser,
    CostSummary,
    CreatedRunnerToken,
    CreatedToken,
    Diagnosis,
    Directory,
    Group,
    GroupLimit,
    HookConfig,
    HookTrial,
    HostCredential,
    ListedChat,
    ListedSkill,
    ListedTemplate,
    ListeningPort,
    McpDisconnectAnswer,
    McpServer,
    McpTrial,
    Me,
    MessagePage,
    ModelChoice,
    ModelFallback,
    NewHook,
    NewPublicLink,
    NewRepositoryConnection,
    Note,
    OfferedModel,
    OwnSettings,
    Page,
    PreviewLink,
    Project,
    ProjectFile,
    ProjectMember,
    Prompt,
    Provider,
    ProviderKey,
    PublicLink,
    PublicLinks,
    RepositoryConnection,
    RepositoryEvent,
    RepositoryTrial,
    Restore,
    Runner,
    RunnerDetail,
    RunnerToken,
    Sent,
    SignedIn,
    Skill,
    SlackConnection,
    SlackEvent,
    SlackLink,
    SlackLinkCode,
    SlackTrial,
    SpendLimits,
    SpendStatus,
    StoredFile,
    Template,
    TemplateVersionLine,
    Token,
    ToolPolicyState,
    ToolTrial,
    Trial,
    UnpackedFiles,
    UserAccount,
    UserKey,
    UserLimit,
    VersionGroup,
    WaitingBuild,
    Workspace,
    WorkspaceBuild,
    WorkspaceNetwork,
)
from chatd.clock import SystemClock
from chatd.domain.ids import (
    ChatId,
    CredentialId,
    FileId,
    GroupId,
    McpServerId,
    MessageId,
    ModelConfigId,
    ProjectId,
    QueueId,
    UserId,
    WorkspaceId,
)
from chatd.domain.ports import Clock

__all__ = ["ApiError", "ServerAddress", "ServerApi", "ServerUnreachable", "Validation", "new_key"]

T = TypeVar("T")

PATIENCE_S: Final = 15.0
_CLOCK: Final = SystemClock()


@asynccontextmanager
async def open_api(
    server: ServerAddress, *, patience_s: float = PATIENCE_S
) -> "AsyncGenerator[ServerApi]":
    """Requests to a server until the end of the block. Cookies are not kept."""
    async with open_session(server.url, aiohttp.DummyCookieJar()) as http:
        yield ServerApi(server, http, patience_s=patience_s)


def open_session(url: str, cookies: AbstractCookieJar) -> aiohttp.ClientSession:
    """A session with the server at this URL, through the proxy that the environment names for
    it."""
    # `trust_env` would also send the password of ~/.netrc instead of the token.
    return aiohttp.ClientSession(
        headers={"User-Agent": f"chatd/{metadata.version('chatd')}"},
        cookie_jar=cookies,
        proxy=find_proxy(url),
    )


def find_proxy(url: str) -> str | None:
    """The proxy of HTTPS_PROXY, HTTP_PROXY and NO_PROXY. None for this machine."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if is_loopback(host) or proxy_bypass(host):
        return None
    return getproxies().get(parts.scheme)


def new_key() -> str:
    """An Idempotency-Key."""
    return secrets.token_urlsafe(18)


class ServerApi:
    """All calls raise ApiError and ServerUnreachable. A call under an Idempotency-Key, which has a
    new one unless the caller gives it, runs once however often it is sent."""

    def __init__(
        self,
        server: ServerAddress,
        http: aiohttp.ClientSession,
        *,
        clock: Clock = _CLOCK,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """A request is repeated for up to `patience_s` while the server does not answer."""
        self.server = server
        self.http = http
        self.clock = clock
        self._requests = Requests(server, http, clock, patience_s)

    def without_patience(self) -> "ServerApi":
        """The same API for a caller that repeats requests by itself."""
        return ServerApi(self.server, self.http, clock=self.clock, patience_s=0.0)

    # Chats

    def list_chats(
        self,
        *,
        q: str | None = None,
        label: Sequence[str] = (),
        status: str | None = None,
        archived: bool | None = None,
        source: Literal["all", "own", "shared"] | None = None,
        pinned: bool | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> ListCall[ListedChat]:
        return self._list(
            "/chats",
            Page[ListedChat],
            q=q,
            label=label,
            status=status,
            archived=archived,
            source=source,
            pinned=pinned,
            limit=limit,
            cursor=cursor,
        )

    def create_chat(self, draft: Draft, *, key: str | None = None) -> Call[Chat]:
        return self._post("/chats", create_body(draft), Chat, key=key or new_key())

    def get_chat(self, chat_id: ChatId) -> Call[ChatDetail]:
        return self._get(f"/chats/{chat_id}", ChatDetail)

    def amend_chat(self, chat_id: ChatId, change: ChatChange) -> Call[Chat]:
        return self._patch(f"/chats/{chat_id}", change, Chat)

    def delete_chat(self, chat_id: ChatId) -> Call[None]:
        return self._delete(f"/chats/{chat_id}")

    def mark_read(self, chat_id: ChatId, message_id: int) -> Call[None]:
        return self._post(f"/chats/{chat_id}/read", {"message_id": message_id}, NoneType)

    def interrupt_chat(
        self,
        chat_id: ChatId,
        *,
        queue: Literal["continue", "hold"] = "continue",
        subagents: Literal["continue", "stop"] | None = None,
    ) -> Call[Chat]:
        body = {"queue": queue, "subagents": subagents}
        return self._post(f"/chats/{chat_id}/interrupt", body, Chat)

    def resume_chat(self, chat_id: ChatId) -> Call[Chat]:
        return self._post(f"/chats/{chat_id}/resume", None, Chat)

    def compact_chat(self, chat_id: ChatId) -> Call[Chat]:
        return self._post(f"/chats/{chat_id}/compact", None, Chat)

    def regenerate_title(self, chat_id: ChatId) -> Call[Chat]:
        return self._post(f"/chats/{chat_id}/title/regenerate", None, Chat)

    def fork_chat(
        self, chat_id: ChatId, message_id: int | None = None, *, copies_workspace: bool = False
    ) -> Call[Chat]:
        """Copy up to and including that message; None: the whole chat."""
        body: dict[str, object] = {"message_id": message_id}
        if copies_workspace:  # an older server knows only the other way
            body["workspace"] = "copy"
        return self._post(f"/chats/{chat_id}/fork", body, Chat, key=new_key())

    def export_chat(self, chat_id: ChatId, format: str) -> Download:  # noqa: A002
        query = (("format", format),)
        path = f"/chats/{chat_id}/export"
        return Download(self._requests, Operation(method="GET", path=path, query=query))

    def load_web_image(self, chat_id: ChatId, url: str) -> Download:
        """An image fetched by the server, from a public address."""
        path, body = f"/chats/{chat_id}/web-images", msgspec.json.encode({"url": url})
        return Download(self._requests, Operation(method="POST", path=path, body=body))

    def import_chat(self, file: BinaryIO) -> Call[Chat]:
        """Sends an export in JSON lines. Not repeated: a second one would make a second chat."""
        sent = UploadedFile(name="", media_type="application/jsonl", file=file, start=file.tell())
        return Call(self._requests, Operation(method="POST", path="/chats/import", file=sent), Chat)

    def list_subagents(
        self, chat_id: ChatId, *, limit: int | None = None, cursor: str | None = None
    ) -> ListCall[Chat]:
        return self._list(f"/chats/{chat_id}/subagents", Page[Chat], limit=limit, cursor=cursor)

    def get_diff(self, chat_id: ChatId, scope: str) -> Call[ChatChanges]:
        return self._get(f"/chats/{chat_id}/diff", ChatChanges, scope=scope)

    def revert_file(
        self, chat_id: ChatId, scope: str, repo_root: str, path: str, *, old_path: str | None = None
    ) -> Call[None]:
        """Restore the file as it was before the turn or the chat, or in the last commit."""
        body = {"scope": scope, "repo_root": repo_root, "path": path, "old_path": old_path}
        return self._post(f"/chats/{chat_id}/workspace/revert", body, NoneType)

    def get_chat_cost(self, chat_id: ChatId) -> Call[ChatCost]:
        return self._get(f"/chats/{chat_id}/cost", ChatCost)

    # Messages, the queue, answers

    def list_messages(
        self,
        chat_id: ChatId,
        *,
        before_id: int | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Call[MessagePage]:
        """The newest first; `cursor` leads to older ones."""
        query: dict[str, QueryValue] = {"before_id": before_id, "limit": limit, "cursor": cursor}
        return self._get(f"/chats/{chat_id}/messages", MessagePage, **query)

    def send_message(self, chat_id: ChatId, draft: Draft, *, key: str | None = None) -> Call[Sent]:
        path = f"/chats/{chat_id}/messages"
        return self._post(path, send_body(draft), Sent, key=key or new_key())

    def edit_message(self, chat_id: ChatId, message_id: MessageId, edit: EditBody) -> Call[Sent]:
        path = f"/chats/{chat_id}/messages/{message_id}"
        return self._patch(path, edit, Sent, key=new_key())

    def regenerate_turn(
        self,
        chat_id: ChatId,
        message_id: MessageId,
        *,
        model_config_id: UUID | None = None,
        reasoning_effort: str | None = None,
    ) -> Call[Sent]:
        """Answer a user message again. Without a model: by the one that it was sent to."""
        chosen = {"model_config_id": model_config_id, "reasoning_effort": reasoning_effort}
        body = {name: value for name, value in chosen.items() if value is not None}
        path = f"/chats/{chat_id}/messages/{message_id}/regenerate"
        return self._post(path, body, Sent, key=new_key())

    def list_versions(
        self, chat_id: ChatId, *, limit: int | None = None, cursor: str | None = None
    ) -> ListCall[VersionGroup]:
        """The shown messages that have several versions."""
        path = f"/chats/{chat_id}/versions"
        return self._list(path, Page[VersionGroup], limit=limit, cursor=cursor)

    def choose_version(self, chat_id: ChatId, message_id: MessageId) -> Call[Chat]:
        path = f"/chats/{chat_id}/messages/{message_id}/version"
        return self._put(path, None, Chat)

    def rate_answer(
        self, chat_id: ChatId, message_id: MessageId, value: Literal["up", "down"], comment: str
    ) -> Call[None]:
        path = f"/chats/{chat_id}/messages/{message_id}/rating"
        body = {"value": value, "comment": comment}
        sent = msgspec.json.encode(body)
        return Call(self._requests, Operation(method="PUT", path=path, body=sent), NoneType)

    def remove_rating(self, chat_id: ChatId, message_id: MessageId) -> Call[None]:
        return self._delete(f"/chats/{chat_id}/messages/{message_id}/rating")

    def answer_calls(
        self, chat_id: ChatId, answers: Sequence[CallAnswer], *, key: str | None = None
    ) -> Call[Chat]:
        body = {"answers": answers}
        return self._post(f"/chats/{chat_id}/answers", body, Chat, key=key or new_key())

    def edit_queued(
        self, chat_id: ChatId, queue_id: QueueId, content: Sequence[InputPart]
    ) -> Call[None]:
        return self._patch(f"/chats/{chat_id}/queue/{queue_id}", {"content": content}, NoneType)

    def delete_queued(self, chat_id: ChatId, queue_id: QueueId) -> Call[None]:
        return self._delete(f"/chats/{chat_id}/queue/{queue_id}")

    def move_queued(self, chat_id: ChatId, queue_id: QueueId, before: QueueId | None) -> Call[None]:
        """Move it before that message; None: to the end."""
        path = f"/chats/{chat_id}/queue/{queue_id}/move"
        return self._post(path, {"before": before}, NoneType)

    def promote_queued(self, chat_id: ChatId, queue_id: QueueId) -> Call[Sent]:
        return self._post(f"/chats/{chat_id}/queue/{queue_id}/promote", None, Sent)

    def list_prompts(self, *, limit: int | None = None) -> ListCall[Prompt]:
        return self._list("/prompts", Page[Prompt], limit=limit)

    def list_chat_prompts(self, chat_id: ChatId, *, limit: int | None = None) -> ListCall[Prompt]:
        return self._list(f"/chats/{chat_id}/prompts", Page[Prompt], limit=limit)

    # Readers of a chat

    def get_acl(self, chat_id: ChatId) -> Call[Directory]:
        return self._get(f"/chats/{chat_id}/acl", Directory)

    def change_acl(
        self,
        chat_id: ChatId,
        *,
        user_roles: Mapping[str, str] | None = None,
        group_roles: Mapping[str, str] | None = None,
    ) -> Call[Directory]:
        """Set roles by id; an empty role takes the access away."""
        body = {"user_roles": user_roles or {}, "group_roles": group_roles or {}}
        return self._patch(f"/chats/{chat_id}/acl", body, Directory)

    def search_directory(self, q: str, *, limit: int | None = None) -> Call[Directory]:
        return self._get("/directory", Directory, q=q, limit=limit)

    # Public links

    def create_public_link(
        self, chat_id: ChatId, *, days: int, with_tools: bool = False, with_files: bool = False
    ) -> Call[NewPublicLink]:
        body = {"days": days, "with_tools": with_tools, "with_files": with_files}
        return self._post(f"/chats/{chat_id}/public-links", body, NewPublicLink)

    def list_public_links(self, *, everyone: bool = False) -> ListCall[PublicLink]:
        return self._list("/public-links", Page[PublicLink], everyone=everyone or None)

    def list_links_of_chat(self, chat_id: ChatId) -> Call[PublicLinks]:
        return self._get(f"/chats/{chat_id}/public-links", PublicLinks)

    def update_public_link(self, link_id: UUID) -> Call[PublicLink]:
        return self._post(f"/public-links/{link_id}/update", None, PublicLink)

    def revoke_public_link(self, link_id: UUID) -> Call[None]:
        return self._delete(f"/public-links/{link_id}")

    # Tool policies

    def get_tool_policy(self) -> Call[ToolPolicyState]:
        return self._get("/settings/tool-policy", ToolPolicyState)

    def get_my_tool_policy(self) -> Call[ToolPolicyState]:
        return self._get("/settings/me/tool-policy", ToolPolicyState)

    def get_template_tool_policy(self, template_id: str) -> Call[ToolPolicyState]:
        return self._get(f"/templates/{template_id}/tool-policy", ToolPolicyState)

    def get_chat_tool_policy(self, chat_id: ChatId) -> Call[ToolPolicyState]:
        return self._get(f"/chats/{chat_id}/tool-policy", ToolPolicyState)

    def put_chat_tool_policy(
        self, chat_id: ChatId, policy: Mapping[str, object]
    ) -> Call[ToolPolicyState]:
        """`policy` has rules, and perhaps the `version` that it replaces: refused with
        `version_conflict` if another one is stored."""
        return self._put(f"/chats/{chat_id}/tool-policy", policy, ToolPolicyState)

    def put_tool_policy(self, policy: Mapping[str, object]) -> Call[ToolPolicyState]:
        """`policy` may also have `may_loosen`."""
        return self._put("/settings/tool-policy", policy, ToolPolicyState)

    def put_my_tool_policy(self, policy: Mapping[str, object]) -> Call[ToolPolicyState]:
        return self._put("/settings/me/tool-policy", policy, ToolPolicyState)

    def put_template_tool_policy(
        self, template_id: str, policy: Mapping[str, object]
    ) -> Call[ToolPolicyState]:
        return self._put(f"/templates/{template_id}/tool-policy", policy, ToolPolicyState)

    def try_tool_policy(self, tried: Mapping[str, object]) -> Call[ToolTrial]:
        """`tried` has a tool, its arguments, and perhaps rules instead of the stored ones."""
        return self._post("/settings/tool-policy/try", tried, ToolTrial)

    def try_my_tool_policy(self, tried: Mapping[str, object]) -> Call[ToolTrial]:
        return self._post("/settings/me/tool-policy/try", tried, ToolTrial)

    def try_chat_tool_policy(self, chat_id: ChatId, tried: Mapping[str, object]) -> Call[ToolTrial]:
        return self._post(f"/chats/{chat_id}/tool-policy/try", tried, ToolTrial)

    # Users, groups and spend limits

    def list_users(self) -> ListCall[UserAccount]:
        return self._list("/users", Page[UserAccount])

    def create_user(self, fields: Mapping[str, object]) -> Call[UserAccount]:
        return self._post("/users", fields, UserAccount)

    def change_user(self, user_id: UserId, fields: Mapping[str, object]) -> Call[UserAccount]:
        return self._patch(f"/users/{user_id}", fields, UserAccount)

    def delete_user(self, user_id: UserId) -> Call[None]:
        return self._delete(f"/users/{user_id}")

    def set_user_password(self, user_id: UserId, password: str) -> Call[UserAccount]:
        return self._post(f"/users/{user_id}/password", {"password": password}, UserAccount)

    def list_groups(self) -> ListCall[Group]:
        return self._list("/groups", Page[Group])

    def create_group(self, name: str) -> Call[Group]:
        return self._post("/groups", {"name": name}, Group)

    def delete_group(self, group_id: GroupId) -> Call[None]:
        return self._delete(f"/groups/{group_id}")

    def list_group_members(self, group_id: GroupId) -> ListCall[UserAccount]:
        return self._list(f"/groups/{group_id}/members", Page[UserAccount])

    def add_group_member(self, group_id: GroupId, user_id: UserId) -> Call[Group]:
        return self._put(f"/groups/{group_id}/members/{user_id}", None, Group)

    def remove_group_member(self, group_id: GroupId, user_id: UserId) -> Call[None]:
        return self._delete(f"/groups/{group_id}/members/{user_id}")

    def get_spend_limits(self) -> Call[SpendLimits]:
        return self._get("/usage-limits", SpendLimits)

    def set_default_limit(self, micros: int | None, period: str) -> Call[SpendLimits]:
        body = {"spend_limit_micros": micros, "period": period}
        return self._put("/usage-limits", body, SpendLimits)

    def delete_default_limit(self) -> Call[None]:
        return self._delete("/usage-limits")

    def list_user_limits(self) -> ListCall[UserLimit]:
        return self._list("/usage-limits/overrides", Page[UserLimit])

    def set_user_limit(self, user_id: UserId, micros: int) -> Call[UserLimit]:
        body = {"spend_limit_micros": micros}
        return self._put(f"/usage-limits/overrides/{user_id}", body, UserLimit)

    def delete_user_limit(self, user_id: UserId) -> Call[None]:
        return self._delete(f"/usage-limits/overrides/{user_id}")

    def list_group_limits(self) -> ListCall[GroupLimit]:
        return self._list("/usage-limits/group-overrides", Page[GroupLimit])

    def set_group_limit(self, group_id: GroupId, micros: int) -> Call[GroupLimit]:
        body = {"spend_limit_micros": micros}
        return self._put(f"/usage-limits/group-overrides/{group_id}", body, GroupLimit)

    def delete_group_limit(self, group_id: GroupId) -> Call[None]:
        return self._delete(f"/usage-limits/group-overrides/{group_id}")

    # Models and providers

    def list_models(
        self, *, include_disabled: bool | None = None, limit: int | None = None
    ) -> ListCall[ModelChoice]:
        query: dict[str, QueryValue] = {"include_disabled": include_disabled, "limit": limit}
        return self._list("/models", Page[ModelChoice], **query)

    def create_model(
        self, *, name: str, provider: str, model: str, is_default: bool | None = None
    ) -> Call[ModelChoice]:
        body = {"name": name, "provider": provider, "model": model, "is_default": is_default}
        return self._post("/models", body, ModelChoice)

    def update_model(
        self,
        model_id: ModelConfigId,
        *,
        fallbacks: Sequence[ModelFallback] | None = None,
        is_default: bool | None = None,
    ) -> Call[ModelChoice]:
        given = {"fallbacks": fallbacks, "is_default": is_default}
        body = {name: value for name, value in given.items() if value is not None}
        return self._patch(f"/models/{model_id}", body, ModelChoice)

    def delete_model(self, model_id: ModelConfigId) -> Call[None]:
        return self._delete(f"/models/{model_id}")

    def list_providers(self, *, include_disabled: bool | None = None) -> ListCall[Provider]:
        return self._list("/providers", Page[Provider], include_disabled=include_disabled)

    def create_provider(
        self,
        *,
        name: str,
        kind: str,
        base_url: str | None = None,
        region: str | None = None,
        api_keys: Sequence[str] = (),
    ) -> Call[Provider]:
        body: dict[str, object] = {"name": name, "kind": kind, "api_keys": api_keys}
        body |= {"base_url": base_url, "region": region}
        return self._post("/providers", body, Provider)

    def delete_provider(self, provider_id: UUID) -> Call[None]:
        return self._delete(f"/providers/{provider_id}")

    def test_provider(
        self, provider_id: UUID, model: str | None = None, *, key_id: UUID | None = None
    ) -> Call[Trial]:
        """Test with this key, else with the provider's first."""
        body = {"model": model, "key_id": key_id}
        return self._post(f"/providers/{provider_id}/test", body, Trial)

    def create_provider_key(self, provider_id: UUID, api_key: str) -> Call[ProviderKey]:
        """It is used after the keys that the provider has."""
        return self._post(f"/providers/{provider_id}/keys", {"api_key": api_key}, ProviderKey)

    def delete_provider_key(self, provider_id: UUID, key_id: UUID) -> Call[None]:
        return self._delete(f"/providers/{provider_id}/keys/{key_id}")

    def list_user_keys(self) -> ListCall[UserKey]:
        return self._list("/user-keys", Page[UserKey])

    def set_user_key(self, provider: str, api_key: str) -> Call[UserKey]:
        """Replace the caller's key for this provider, if there is one."""
        return self._post("/user-keys", {"provider": provider, "api_key": api_key}, UserKey)

    def list_offered_models(self, provider_id: UUID) -> ListCall[OfferedModel]:
        return self._list(f"/providers/{provider_id}/models", Page[OfferedModel])

    # The deployment

    def get_diagnosis(self) -> Call[Diagnosis]:
        return self._get("/diagnosis", Diagnosis)

    def confirm_restore(self) -> Call[Restore]:
        return self._post("/restore/confirm", None, Restore)

    # MCP servers

    def list_mcp_servers(
        self, *, limit: int | None = None, cursor: str | None = None
    ) -> ListCall[McpServer]:
        return self._list("/mcp-servers", Page[McpServer], limit=limit, cursor=cursor)

    def disconnect_mcp_server(self, server_id: McpServerId) -> Call[McpDisconnectAnswer]:
        path = f"/mcp-servers/{server_id}/connection"
        return self._delete_for(path, McpDisconnectAnswer)

    def test_mcp_server(self, server_id: McpServerId) -> Call[McpTrial]:
        return self._post(f"/mcp-server-configs/{server_id}/test", None, McpTrial)

    # Workspaces

    def list_workspaces(self, *, limit: int | None = None) -> ListCall[Workspace]:
        return self._list("/workspaces", Page[Workspace], limit=limit)

    def get_workspace(self, workspace_id: WorkspaceId) -> Call[Workspace]:
        return self._get(f"/workspaces/{workspace_id}", Workspace)

    def get_workspace_network(self, workspace_id: WorkspaceId) -> Call[WorkspaceNetwork]:
        return self._get(f"/workspaces/{workspace_id}/network", WorkspaceNetwork)

    def create_workspace(
        self,
        template: str | None = None,
        *,
        name: str | None = None,
        runner_id: str | None = None,
        parameters: Mapping[str, str] | None = None,
    ) -> Call[Workspace]:
        """Without a template it is created in the directory for which the caller started the
        runner."""
        body = {
            "template": template,
            "name": name,
            "runner_id": runner_id,
            "parameters": parameters or {},
        }
        return self._post("/workspaces", body, Workspace, key=new_key())

    def load_archive(
        self, workspace_id: WorkspaceId, path: str = "", *, gzip: bool = False
    ) -> Download:
        query = (("path", path), ("gzip", gzip))
        asked = Operation(method="GET", path=f"/workspaces/{workspace_id}/archive", query=query)
        return Download(self._requests, asked)

    def unpack_archive(
        self, workspace_id: WorkspaceId, archive: UploadedStream, path: str = ""
    ) -> Call[UnpackedFiles]:
        asked = Operation(
            method="PUT",
            path=f"/workspaces/{workspace_id}/archive",
            query=(("path", path),),
            file=archive,
        )
        return Call(self._requests, asked, UnpackedFiles)

    def list_ports(self, workspace_id: WorkspaceId) -> ListCall[ListeningPort]:
        return self._list(f"/workspaces/{workspace_id}/ports", Page[ListeningPort])

    def create_preview(
        self, workspace_id: WorkspaceId, port: int, path: str = "/"
    ) -> Call[PreviewLink]:
        body = {"port": port, "path": path}
        return self._post(f"/workspaces/{workspace_id}/previews", body, PreviewLink)

    def create_build(
        self, workspace_id: WorkspaceId, transition: Literal["start", "stop"]
    ) -> Call[WorkspaceBuild]:
        path = f"/workspaces/{workspace_id}/builds"
        return self._post(path, {"transition": transition}, WorkspaceBuild, key=new_key())

    def list_templates(self, *, limit: int | None = None) -> ListCall[Template]:
        return self._list("/templates", Page[Template], limit=limit)

    # Templates, for administrators

    def list_template_configs(self, *, limit: int | None = None) -> ListCall[ListedTemplate]:
        return self._list("/template-configs", Page[ListedTemplate], limit=limit)

    def get_template_config(self, template_id: UUID) -> Call[ConfiguredTemplate]:
        return self._get(f"/template-configs/{template_id}", ConfiguredTemplate)

    def create_template(self, definition: Mapping[str, object]) -> Call[ConfiguredTemplate]:
        """`definition` has the keys of a `[[templates]]` table."""
        return self._post("/template-configs", definition, ConfiguredTemplate)

    def replace_template(
        self, template_id: UUID, definition: Mapping[str, object], *, activate: bool = True
    ) -> Call[ConfiguredTemplate]:
        """What the definition leaves out gets its default."""
        body = {**definition, "activate": activate}
        return self._put(f"/template-configs/{template_id}", body, ConfiguredTemplate)

    def duplicate_template(self, template_id: UUID, name: str) -> Call[ConfiguredTemplate]:
        path = f"/template-configs/{template_id}/duplicate"
        return self._post(path, {"name": name}, ConfiguredTemplate)

    def delete_template(self, template_id: UUID) -> Call[None]:
        return self._delete(f"/template-configs/{template_id}")

    def list_template_versions(
        self, template_id: UUID, *, limit: int | None = None
    ) -> ListCall[TemplateVersionLine]:
        path = f"/template-configs/{template_id}/versions"
        return self._list(path, Page[TemplateVersionLine], limit=limit)

    def activate_template_version(
        self, template_id: UUID, version_id: UUID
    ) -> Call[ConfiguredTemplate]:
        path = f"/template-configs/{template_id}/versions/{version_id}/activate"
        return self._post(path, None, ConfiguredTemplate)

    # Runners

    def list_runners(self) -> ListCall[Runner]:
        return self._list("/runners", Page[Runner])

    def get_runner(self, runner_id: str) -> Call[RunnerDetail]:
        return self._get(f"/runners/{quote(runner_id, safe='')}", RunnerDetail)

    def update_runner(self, runner_id: str, *, draining: bool) -> Call[Runner]:
        path = f"/runners/{quote(runner_id, safe='')}"
        return self._patch(path, {"draining": draining}, Runner)

    def remove_runner(self, runner_id: str, *, with_workspaces: bool = False) -> Call[None]:
        query = "?with_workspaces=true" if with_workspaces else ""
        return self._delete(f"/runners/{quote(runner_id, safe='')}{query}")

    def list_waiting_builds(self) -> ListCall[WaitingBuild]:
        return self._list("/builds/waiting", Page[WaitingBuild])

    def list_runner_tokens(self) -> ListCall[RunnerToken]:
        return self._list("/runner-tokens", Page[RunnerToken])

    def create_runner_token(
        self, pool: str, *, name: str | None = None, expires_at: datetime | None = None
    ) -> Call[CreatedRunnerToken]:
        body = {"pool": pool, "name": name, "expires_at": expires_at}
        return self._post("/runner-tokens", body, CreatedRunnerToken)

    def revoke_runner_token(self, token_id: UUID) -> Call[None]:
        return self._delete(f"/runner-tokens/{token_id}")

    # Credentials of hosts: the caller's own, or those of the deployment and of groups

    def list_host_credentials(self) -> ListCall[HostCredential]:
        return self._list("/host-credentials", Page[HostCredential])

    def save_host_credential(self, fields: Mapping[str, object]) -> Call[HostCredential]:
        return self._post("/host-credentials", dict(fields), HostCredential)

    def delete_host_credential(self, credential_id: UUID) -> Call[None]:
        return self._delete(f"/host-credentials/{credential_id}")

    def list_shared_credentials(self) -> ListCall[HostCredential]:
        return self._list("/host-credential-configs", Page[HostCredential])

    def save_shared_credential(self, fields: Mapping[str, object]) -> Call[HostCredential]:
        return self._post("/host-credential-configs", dict(fields), HostCredential)

    def delete_shared_credential(self, credential_id: UUID) -> Call[None]:
        return self._delete(f"/host-credential-configs/{credential_id}")

    # Hooks

    def list_hooks(self) -> ListCall[HookConfig]:
        return self._list("/hooks", Page[HookConfig])

    def get_hook(self, hook_id: UUID) -> Call[HookConfig]:
        return self._get(f"/hooks/{hook_id}", HookConfig)

    def create_hook(self, fields: Mapping[str, object]) -> Call[NewHook]:
        return self._post("/hooks", dict(fields), NewHook)

    def change_hook(self, hook_id: UUID, fields: Mapping[str, object]) -> Call[HookConfig]:
        return self._patch(f"/hooks/{hook_id}", dict(fields), HookConfig)

    def delete_hook(self, hook_id: UUID) -> Call[None]:
        return self._delete(f"/hooks/{hook_id}")

    def try_hook(self, hook_id: UUID) -> Call[HookTrial]:
        return self._post(f"/hooks/{hook_id}/test", None, HookTrial)

    # Connections to repositories

    def list_repository_connections(self) -> ListCall[RepositoryConnection]:
        return self._list("/repository-connections", Page[RepositoryConnection])

    def get_repository_connection(self, connection_id: UUID) -> Call[RepositoryConnection]:
        return self._get(f"/repository-connections/{connection_id}", RepositoryConnection)

    def create_repository_connection(
        self, fields: Mapping[str, object]
    ) -> Call[NewRepositoryConnection]:
        return self._post("/repository-connections", dict(fields), NewRepositoryConnection)

    def change_repository_connection(
        self, connection_id: UUID, fields: Mapping[str, object]
    ) -> Call[RepositoryConnection]:
        path = f"/repository-connections/{connection_id}"
        return self._patch(path, dict(fields), RepositoryConnection)

    def delete_repository_connection(self, connection_id: UUID) -> Call[None]:
        return self._delete(f"/repository-connections/{connection_id}")

    def try_repository_connection(self, connection_id: UUID) -> Call[RepositoryTrial]:
        return self._post(f"/repository-connections/{connection_id}/test", None, RepositoryTrial)

    def list_repository_events(self, connection_id: UUID) -> ListCall[RepositoryEvent]:
        path = f"/repository-connections/{connection_id}/events"
        return self._list(path, Page[RepositoryEvent])

    # Slack

    def list_slack_connections(self) -> ListCall[SlackConnection]:
        return self._list("/slack-connections", Page[SlackConnection])

    def get_slack_connection(self, slack_id: UUID) -> Call[SlackConnection]:
        return self._get(f"/slack-connections/{slack_id}", SlackConnection)

    def create_slack_connection(self, fields: Mapping[str, object]) -> Call[SlackConnection]:
        return self._post("/slack-connections", dict(fields), SlackConnection)

    def change_slack_connection(
        self, slack_id: UUID, fields: Mapping[str, object]
    ) -> Call[SlackConnection]:
        return self._patch(f"/slack-connections/{slack_id}", dict(fields), SlackConnection)

    def delete_slack_connection(self, slack_id: UUID) -> Call[None]:
        return self._delete(f"/slack-connections/{slack_id}")

    def try_slack_connection(self, slack_id: UUID) -> Call[SlackTrial]:
        return self._post(f"/slack-connections/{slack_id}/test", None, SlackTrial)

    def list_slack_events(self, slack_id: UUID) -> ListCall[SlackEvent]:
        return self._list(f"/slack-connections/{slack_id}/events", Page[SlackEvent])

    def list_slack_links(self) -> ListCall[SlackLink]:
        return self._list("/slack-links", Page[SlackLink])

    def make_slack_code(self) -> Call[SlackLinkCode]:
        return self._post("/slack-links/code", None, SlackLinkCode)

    def delete_slack_link(self, slack_link_id: UUID) -> Call[None]:
        return self._delete(f"/slack-links/{slack_link_id}")

    # Files

    def upload_file(self, name: str, media_type: str, file: BinaryIO) -> Call[StoredFile]:
        """Sends the rest of the file from its current place."""
        sent = UploadedFile(name=name, media_type=media_type, file=file, start=file.tell())
        asked = Operation(method="POST", path="/files", file=sent, key=new_key())
        return Call(self._requests, asked, StoredFile)

    def get_file(self, file_id: FileId) -> Call[StoredFile]:
        return self._get(f"/files/{file_id}", StoredFile)

    def load_content(self, file_id: FileId | str) -> Download:
        path = f"/files/{file_id}/content"
        return Download(self._requests, Operation(method="GET", path=path))

    # The user, tokens, skills, costs

    def get_me(self) -> Call[Me]:
        return self._get("/auth/me", Me)

    def sign_in_with_password(self, username: str, password: str) -> Call[SignedIn]:
        return self._post("/auth/login", {"username": username, "password": password}, SignedIn)

    def sign_in_with_link(self, secret: str) -> Call[SignedIn]:
        return self._post("/auth/link", {"secret": secret}, SignedIn)

    def sign_out(self) -> Call[None]:
        return self._post("/auth/logout", None, NoneType)

    def list_tokens(self) -> ListCall[Token]:
        return self._list("/auth/tokens", Page[Token])

    def create_token(
        self,
        name: str,
        *,
        scopes: Sequence[str] | None = None,
        expires_at: datetime | None = None,
    ) -> Call[CreatedToken]:
        """`scopes` None: everything that the user may do."""
        body = {"name": name, "scopes": scopes, "expires_at": expires_at}
        return self._post("/auth/tokens", body, CreatedToken)

    def revoke_token(self, token_id: CredentialId) -> Call[None]:
        return self._delete(f"/auth/tokens/{token_id}")

    def list_skills(self) -> ListCall[ListedSkill]:
        return self._list("/skills", Page[ListedSkill])

    def get_skill(self, skill_id: UUID) -> Call[Skill]:
        return self._get(f"/skills/{skill_id}", Skill)

    def create_skill(self, *, name: str, description: str, body: str) -> Call[Skill]:
        sent = {"name": name, "description": description, "body": body}
        return self._post("/skills", sent, Skill)

    def change_skill(self, skill_id: UUID, *, description: str, body: str) -> Call[Skill]:
        return self._patch(f"/skills/{skill_id}", {"description": description, "body": body}, Skill)

    def get_my_settings(self) -> Call[OwnSettings]:
        return self._get("/settings/me", OwnSettings)

    def change_my_settings(self, changes: Mapping[str, object]) -> Call[OwnSettings]:
        return self._patch("/settings/me", changes, OwnSettings)

    def list_notes(
        self, *, state: str | None = None, project_id: ProjectId | None = None
    ) -> ListCall[Note]:
        project = None if project_id is None else str(project_id)
        return self._list("/memory/notes", Page[Note], state=state, project_id=project)

    def get_note(self, note_id: UUID) -> Call[Note]:
        return self._get(f"/memory/notes/{note_id}", Note)

    def create_note(
        self, text: str, *, project_id: ProjectId | None = None, enabled: bool = True
    ) -> Call[Note]:
        project = None if project_id is None else str(project_id)
        body = {"text": text, "project_id": project, "enabled": enabled}
        return self._post("/memory/notes", body, Note)

    def change_note(self, note_id: UUID, changes: Mapping[str, object]) -> Call[Note]:
        return self._patch(f"/memory/notes/{note_id}", changes, Note)

    def delete_note(self, note_id: UUID) -> Call[None]:
        return self._delete(f"/memory/notes/{note_id}")

    def accept_note(
        self, note_id: UUID, *, text: str | None = None, project_id: ProjectId | None = None
    ) -> Call[Note]:
        """Without a text: as it was proposed."""
        body = {"project_id": None if project_id is None else str(project_id)}
        sent = body if text is None else {**body, "text": text}
        return self._post(f"/memory/notes/{note_id}/accept", sent, Note)

    def dismiss_note(self, note_id: UUID) -> Call[Note]:
        return self._post(f"/memory/notes/{note_id}/dismiss", None, Note)

    def list_projects(self) -> ListCall[Project]:
        return self._list("/projects", Page[Project])

    def get_project(self, project_id: ProjectId) -> Call[Project]:
        return self._get(f"/projects/{project_id}", Project)

    def create_project(self, body: Mapping[str, object]) -> Call[Project]:
        return self._post("/projects", body, Project)

    def change_project(self, project_id: ProjectId, body: Mapping[str, object]) -> Call[Project]:
        return self._patch(f"/projects/{project_id}", body, Project)

    def delete_project(self, project_id: ProjectId) -> Call[None]:
        return self._delete(f"/projects/{project_id}")

    def list_project_members(self, project_id: ProjectId) -> ListCall[ProjectMember]:
        return self._list(f"/projects/{project_id}/members", Page[ProjectMember])

    def set_project_member(
        self, project_id: ProjectId, user_id: UserId, role: str
    ) -> Call[ProjectMember]:
        path = f"/projects/{project_id}/members/{user_id}"
        return self._put(path, {"role": role}, ProjectMember)

    def remove_project_member(self, project_id: ProjectId, user_id: UserId) -> Call[None]:
        return self._delete(f"/projects/{project_id}/members/{user_id}")

    def list_project_files(self, project_id: ProjectId) -> ListCall[ProjectFile]:
        return self._list(f"/projects/{project_id}/files", Page[ProjectFile])

    def add_project_file(
        self, project_id: ProjectId, file_id: FileId, name: str | None = None
    ) -> Call[ProjectFile]:
        body = {"file_id": str(file_id), "name": name}
        return self._post(f"/projects/{project_id}/files", body, ProjectFile)

    def remove_project_file(self, project_id: ProjectId, file_id: FileId) -> Call[None]:
        return self._delete(f"/projects/{project_id}/files/{file_id}")

    def delete_skill(self, skill_id: UUID) -> Call[None]:
        return self._delete(f"/skills/{skill_id}")

    def get_my_costs(self, *, start_date: str | None = None) -> Call[CostSummary]:
        return self._get("/cost/me/summary", CostSummary, start_date=start_date)

    def list_user_costs(self, *, start_date: str | None = None) -> ListCall[CostByUser]:
        return self._list("/cost/users", Page[CostByUser], start_date=start_date)

    def get_spend_status(self) -> Call[SpendStatus]:
        return self._get("/usage-limits/status", SpendStatus)

    # How operations are made

    def _get(self, path: str, reply: type[T], **query: QueryValue) -> Call[T]:
        asked = Operation(method="GET", path=path, query=tuple(query.items()))
        return Call(self._requests, asked, reply)

    def _list(self, path: str, page: type[Page[T]], **query: QueryValue) -> ListCall[T]:
        asked = Operation(method="GET", path=path, query=tuple(query.items()))
        return ListCall(self._requests, asked, page)

    def _post(self, path: str, body: object, reply: type[T], *, key: str | None = None) -> Call[T]:
        """`body` None: no body. `reply` `NoneType`: none is expected."""
        sent = None if body is None else msgspec.json.encode(body)
        asked = Operation(method="POST", path=path, body=sent, key=key)
        return Call(self._requests, asked, reply)

    def _put(self, path: str, body: object, reply: type[T]) -> Call[T]:
        """`body` None: no body."""
        sent = None if body is None else msgspec.json.encode(body)
        asked = Operation(method="PUT", path=path, body=sent)
        return Call(self._requests, asked, reply)

    def _patch(self, path: str, body: object, reply: type[T], *, key: str | None = None) -> Call[T]:
        asked = Operation(method="PATCH", path=path, body=msgspec.json.encode(body), key=key)
        return Call(self._requests, asked, reply)

    def _delete(self, path: str) -> Call[None]:
        return self._delete_for(path, NoneType)

    def _delete_for(self, path: str, reply: type[T]) -> Call[T]:
        return Call(self._requests, Operation(method="DELETE", path=path), reply)

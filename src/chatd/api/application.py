"""The ASGI application: requests, event streams and WebSockets, and the health pages of operators.

Dispatches each request by the route table, turns errors into replies, counts requests, and adds
the headers that every response has. Only pages and public routes are served without a credential.
"""

import asyncio
import hmac
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from chatd.api.accounts import plain_pages
from chatd.api.accounts.plain_pages import SignInPages
from chatd.api.accounts.request_limits import route_group
from chatd.api.answer_page import ANSWER_PAGES
from chatd.api.deps import ApiDeps, GatherMetrics
from chatd.api.errors import STOPPING_TEXT, Draining, MethodNotAllowed, Unauthorized, error_reply
from chatd.api.mcp.endpoint import build_mcp_route
from chatd.api.openai.endpoint import build_openai_routes
from chatd.api.openapi.docs_pages import ApiDocs
from chatd.api.request import (
    ApiReply,
    ApiRequest,
    Message,
    NoQuery,
    Receive,
    Scope,
    Send,
    header,
    reply,
    send_reply,
)
from chatd.api.route import (
    PREFIX,
    ApiMetrics,
    ApiRoute,
    MountedRoute,
    Page,
    PageRoute,
    RouteTable,
    StreamRoute,
)
from chatd.api.routes.account.git_credentials import GitCredentialRoutes
from chatd.api.routes.account.host_credentials import HostCredentialRoutes
from chatd.api.routes.account.memory import MemoryRoutes
from chatd.api.routes.account.push import PushRoutes
from chatd.api.routes.account.schedules import ScheduleRoutes
from chatd.api.routes.account.sign_in import OidcRoutes, SignInRoutes
from chatd.api.routes.account.skills import SkillRoutes
from chatd.api.routes.account.tokens import TokenRoutes
from chatd.api.routes.account.webhooks import WebhookRoutes
from chatd.api.routes.administration.audit import AuditRoutes
from chatd.api.routes.administration.costs import CostRoutes
from chatd.api.routes.administration.demo import DemoRoutes
from chatd.api.routes.administration.diagnosis import DiagnosisRoutes
from chatd.api.routes.administration.hooks import HookRoutes
from chatd.api.routes.administration.models import ModelRoutes
from chatd.api.routes.administration.providers import ProviderRoutes
from chatd.api.routes.administration.repositories import RepositoryRoutes
from chatd.api.routes.administration.runners import RunnerRoutes
from chatd.api.routes.administration.runtime_settings import RuntimeSettingsRoutes
from chatd.api.routes.administration.slack import SlackRoutes
from chatd.api.routes.administration.spend_limits import SpendLimitRoutes
from chatd.api.routes.administration.template_configs import TemplateConfigRoutes
from chatd.api.routes.administration.users import GroupRoutes, UserRoutes
from chatd.api.routes.chat.answer_links import AnswerLinkRoutes
from chatd.api.routes.chat.answers import AnswerRoutes
from chatd.api.routes.chat.chat_lists import ChatListRoutes
from chatd.api.routes.chat.chats import ChatRoutes, TitleRoutes
from chatd.api.routes.chat.copies import CopyRoutes
from chatd.api.routes.chat.debug import DebugRoutes
from chatd.api.routes.chat.messages import MessageRoutes, QueueRoutes
from chatd.api.routes.chat.public_links import PublicLinkRoutes
from chatd.api.routes.chat.ratings import RatingRoutes
from chatd.api.routes.chat.runs import RunRoutes
from chatd.api.routes.chat.shares import ShareRoutes
from chatd.api.routes.chat.tool_policies import ToolPolicyRoutes
from chatd.api.routes.chat.versions import VersionRoutes
from chatd.api.routes.chat.web_images import WebImageRoutes
from chatd.api.routes.files import ChatFileRoutes, FileRoutes
from chatd.api.routes.mcp_servers import McpServerConfigRoutes, McpServerRoutes
from chatd.api.routes.projects import ProjectRoutes
from chatd.api.routes.prompts import PromptRoutes
from chatd.api.routes.workspace.builds import BuildRoutes
from chatd.api.routes.workspace.chat_workspaces import ChatWorkspaceRoutes
from chatd.api.routes.workspace.desktop import DesktopRoutes, DesktopSockets, desktop_chat
from chatd.api.routes.workspace.preview_links import PreviewRoutes
from chatd.api.routes.workspace.workspace_archives import WorkspaceArchiveRoutes
from chatd.api.routes.workspace.workspace_effects import WorkspaceEffectRoutes
from chatd.api.routes.workspace.workspace_files import WorkspaceFileRoutes
from chatd.api.routes.workspace.workspaces import TemplateRoutes, WorkspaceRoutes
from chatd.api.schemas.chats import HealthReply
from chatd.api.server import send_together
from chatd.api.sockets.previews import PreviewSite
from chatd.api.sockets.runner_sockets import RUNNER_PATHS, RunnerSockets
from chatd.api.sockets.terminal_socket import TERMINAL_PATH, TerminalSockets, terminal_chat
from chatd.api.sockets.websocket import WebSockets
from chatd.api.sse import ChatEventStreams, WorkspaceEventStreams
from chatd.api.streams import AccessChecks, StreamRegistry
from chatd.api.web_page import HelpSite, LitePage, PageFiles, WebPage
from chatd.domain.access.permissions import require_permission
from chatd.domain.errors import ChatdError, NotFound
from chatd.log_event import LogEvent
from chatd.store.database.conn import DATABASE_CAUSES
from chatd.store.database.pool import Pool

HEALTH_TIMEOUT_S: Final = 2.0


class HealthRoutes:
    """Public pages: they show nothing that belongs to a user. With `metrics_token` the metrics need
    it as a bearer token."""

    def __init__(
        self,
        pool: Pool,
        registry: CollectorRegistry,
        draining: Callable[[], bool],
        database_error: Callable[[], str | None] = lambda: None,
        *,
        hears_hints: Callable[[], bool] = lambda: True,
        metrics_token: str | None = None,
        gather_metrics: GatherMetrics | None = None,
    ) -> None:
        """`database_error` is the code of the latest write's error while writes fail: a database
        with a full disk still answers a ping. Without `hears_hints` the server is ready and says
        so: other replicas hear as little, and a deployment with no ready server is down."""
        self._pool = pool
        self._registry = registry
        self._draining = draining
        self._database_error = database_error
        self._hears_hints = hears_hints
        self._metrics_token = metrics_token
        self._gather_metrics = gather_metrics

    @property
    def pages(self) -> Mapping[str, Page | PageRoute]:
        metrics = PageRoute(serve=self.metrics)
        return {"/healthz": self.alive, "/readyz": self.ready, "/metrics": metrics}

    async def alive(self) -> ApiReply:
        return reply(HealthReply(status="ok"))

    async def ready(self) -> ApiReply:
        """Not ready while draining, so that a load balancer sends no new requests."""
        if self._draining():
            return reply(HealthReply(status="draining"), 503)
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT_S):
                await self._pool.ping()
        except ChatdError as error:
            return _unavailable(error.code)
        except TimeoutError:
            return _unavailable("database_timeout")
        if (code := self._database_error()) is not None:
            return _unavailable(code)
        if not self._hears_hints():
            return reply(_LATE)
        return reply(HealthReply(status="ok"))

    async def metrics(self, scope: Scope) -> ApiReply:
        if self._metrics_token is not None:
            wanted = f"Bearer {self._metrics_token}".encode()
            given = (header(scope, b"authorization") or "").encode(errors="replace")
            if not hmac.compare_digest(given, wanted):
                raise Unauthorized("The metrics need the token of server.metrics_token.")
        gather = self._gather_metrics
        text = generate_latest(self._registry) if gather is None else await gather()
        return ApiReply(body=text, media_type=CONTENT_TYPE_LATEST)


_LATE: Final = HealthReply(
    status="ok",
    reason="notifications_lost",
    message="NATS is not connected; changes of other servers are seen seconds late",
)


def _unavailable(code: str) -> ApiReply:
    message = DATABASE_CAUSES.get(code, "the database does not answer")
    return reply(HealthReply(status="unavailable", reason=code, message=message), 503)


log = logging.getLogger(__name__)

WEBSOCKET_PATH: Final = f"{PREFIX}/ws"
COMMON_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)
_NO_STORE: Final = (b"cache-control", b"no-store")
_UNMATCHED: Final = "unmatched"
_NO_ROUTE_TEXT: Final = "There is no such path. The API is described at /docs."


def all_routes(deps: ApiDeps) -> tuple[ApiRoute, ...]:
    return (
        *ChatRoutes(deps).routes(),
        *ChatListRoutes(deps).routes(),
        *MessageRoutes(deps).routes(),
        *AnswerRoutes(deps).routes(),
        *AnswerLinkRoutes(deps).routes(),
        *ToolPolicyRoutes(deps).routes(),
        *QueueRoutes(deps).routes(),
        *VersionRoutes(deps).routes(),
        *RatingRoutes(deps).routes(),
        *ShareRoutes(deps).routes(),
        *PublicLinkRoutes(deps).routes(),
        *PromptRoutes(deps).routes(),
        *RunRoutes(deps).routes(),
        *DebugRoutes(deps).routes(),
        *CopyRoutes(deps).routes(),
        *TitleRoutes(deps).routes(),
        *ChatWorkspaceRoutes(deps).routes(),
        *WorkspaceFileRoutes(deps).routes(),
        *WorkspaceArchiveRoutes(deps).routes(),
        *WorkspaceEffectRoutes(deps).routes(),
        *PreviewRoutes(deps).routes(),
        *DesktopRoutes(deps).routes(),
        *ModelRoutes(deps).routes(),
        *ProviderRoutes(deps).routes(),
        *RuntimeSettingsRoutes(deps).routes(),
        *RunnerRoutes(deps).routes(),
        *McpServerRoutes(deps).routes(),
        *McpServerConfigRoutes(deps).routes(),
        *SpendLimitRoutes(deps).routes(),
        *CostRoutes(deps).routes(),
        *WebhookRoutes(deps).routes(),
        *HookRoutes(deps).routes(),
        *RepositoryRoutes(deps).routes(),
        *SlackRoutes(deps).routes(),
        *PushRoutes(deps).routes(),
        *ScheduleRoutes(deps).routes(),
        *SkillRoutes(deps).routes(),
        *MemoryRoutes(deps).routes(),
        *ProjectRoutes(deps).routes(),
        *GitCredentialRoutes(deps).routes(),
        *HostCredentialRoutes(deps).routes(),
        *TemplateRoutes(deps).routes(),
        *TemplateConfigRoutes(deps).routes(),
        *WorkspaceRoutes(deps).routes(),
        *BuildRoutes(deps).routes(),
        *FileRoutes(deps).routes(),
        *ChatFileRoutes(deps).routes(),
        *WebImageRoutes(deps).routes(),
        *SignInRoutes(deps).routes(),
        *OidcRoutes(deps).routes(),
        *TokenRoutes(deps).routes(),
        *UserRoutes(deps).routes(),
        *AuditRoutes(deps).routes(),
        *GroupRoutes(deps).routes(),
        *DemoRoutes(deps).routes(),
        *DiagnosisRoutes(deps).routes(),
    )


def build_application(deps: ApiDeps) -> "ApiApplication":
    return ApiApplication(deps)


class ApiApplication:
    """An ASGI application. `close` ends all streams, so that the server can stop."""

    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps
        self._accounts = deps.accounts
        self._metrics = ApiMetrics(deps.registry)
        checks = AccessChecks(deps.pool, deps.env)
        self._streams = StreamRegistry(checks, deps.limits, self._metrics, deps.accounts.changes)
        self._sockets = WebSockets(deps, self._streams)
        self._terminals = TerminalSockets(deps, self._streams)
        self._desktops = DesktopSockets(deps, self._streams)
        self._runners = RunnerSockets(deps)
        self._previews = PreviewSite(deps)
        routes = all_routes(deps)
        streams = (
            *ChatEventStreams(deps, self._streams).routes(),
            *WorkspaceEventStreams(deps, self._streams).routes(),
        )
        health = HealthRoutes(
            deps.pool,
            deps.registry,
            deps.draining,
            deps.database_error,
            hears_hints=deps.hears_hints,
            metrics_token=deps.metrics_token,
            gather_metrics=deps.gather_metrics,
        )
        page = PageFiles(deps.page_dir)
        lite, sign_in = LitePage(page), SignInPages()
        self._web_page = WebPage(
            page,
            lite,
            sign_in.sign_in,
            HelpSite(PageFiles(deps.help_dir)),
            deps.frame_origins,
            preview_sources=deps.accounts.site.preview_sources,
        )
        self.table = RouteTable(
            {
                **health.pages,
                **ApiDocs(routes, streams).pages,
                **sign_in.pages,
                **plain_pages.PAGES,
                **ANSWER_PAGES,
                **self._web_page.pages,
            },
            routes,
            streams,
            [
                build_mcp_route(deps, routes, self._streams),
                *build_openai_routes(deps, routes, self._streams),
            ],
        )

    async def close(self) -> None:
        await self._previews.close()
        await self._streams.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._previews.serves(scope):
            status = await self._previews(scope, receive, send)
            self._metrics.on_reply(scope.get("method", "GET"), "preview", status, None)
            return
        observed = _ObservedSend(send, self._accounts.site.cors_headers(scope))
        if scope["type"] == "websocket":
            await self._websocket(scope, receive, observed)
        else:
            await self._http(scope, receive, observed)

    async def _http(self, scope: Scope, receive: Receive, send: "_ObservedSend") -> None:
        clock = self._deps.env.clock
        began = clock.monotonic()
        label, handler = _UNMATCHED, None
        try:
            found = self.table.find(scope["path"]) or self._web_page.find(scope["path"])
            if found is None:
                raise NotFound(_NO_ROUTE_TEXT)
            endpoint, path = found
            handler = endpoint.select(scope)
            label = endpoint.template
            if handler is None:
                headers = {"allow": endpoint.allow} | self._accounts.site.preflight_headers(scope)
                await send_reply(send, ApiReply(status=204, headers=headers))
            elif isinstance(handler, StreamRoute):
                await handler.serve(await self._call(scope, path, receive, handler), send)
            elif isinstance(handler, ApiRoute):
                if handler.starts_work and self._deps.draining():
                    raise Draining(STOPPING_TEXT)
                request = await self._call(scope, path, receive, handler)
                await send_reply(send, await handler.handle(request))
            elif isinstance(handler, PageRoute):
                await send_reply(send, await handler.serve(scope))
            elif isinstance(handler, MountedRoute):
                await handler.serve(scope, receive, send)
            else:
                await send_reply(send, await handler())
        except Exception as error:
            if send.status:
                raise
            await send_reply(send, handle_error(error))
        finally:
            is_stream = isinstance(handler, MountedRoute | StreamRoute)
            seconds = None if is_stream else clock.monotonic() - began
            self._metrics.on_reply(scope["method"], label, send.status, seconds)

    async def _call(
        self,
        scope: Scope,
        path: Mapping[str, str],
        receive: Receive,
        route: ApiRoute | StreamRoute,
    ) -> ApiRequest:
        caller = None
        if isinstance(route, ApiRoute) and route.authenticate is not None:
            caller = await route.authenticate(scope, path)
        elif route.permission == "public":
            self._accounts.site.require_host(scope)
        else:
            is_stream = isinstance(route, StreamRoute)
            caller = await self._accounts.authenticator.caller(scope, is_stream=is_stream)
            self._accounts.limits.take(caller, route_group(scope["method"], route.path))
        if caller is not None and route.permission not in ("public", "signed_in"):
            require_permission(caller.actor, route.permission)
        request = ApiRequest(caller=caller, path=path, scope=scope, receive=receive)
        if route.query is None:
            request.query(NoQuery)
        return request

    async def _websocket(self, scope: Scope, receive: Receive, send: "_ObservedSend") -> None:
        try:
            if scope["path"] in RUNNER_PATHS:
                await self._runners.serve(scope, receive, send)
                return
            path = scope["path"]
            shell, desktop = terminal_chat(path), desktop_chat(path)
            if shell is None and desktop is None and path != WEBSOCKET_PATH:
                raise NotFound(_NO_ROUTE_TEXT)
            caller = await self._accounts.authenticator.caller(scope, is_stream=True)
            if shell is None and desktop is None:
                require_permission(caller.actor, "chats.read")
                await self._sockets.serve(receive, send, caller=caller)
                return
            require_permission(caller.actor, "workspaces.write")
            self._accounts.limits.take(caller, route_group("GET", TERMINAL_PATH))
            if shell is not None:
                await self._terminals.serve(scope, receive, send, caller=caller, chat_id=shell)
            elif desktop is not None:
                await self._desktops.serve(scope, receive, send, caller=caller, chat_id=desktop)
        except ChatdError as error:
            if send.status:
                raise
            await send_reply(send, handle_error(error), prefix="websocket.")


class HealthApplication:
    """An ASGI application for a process that serves no API: health pages and metrics."""

    def __init__(self, health: HealthRoutes) -> None:
        self._pages = health.pages

    async def close(self) -> None:
        """Nothing here stays open."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del receive
        if scope["type"] == "websocket":
            await send_reply(send, _not_served(), prefix="websocket.")
        elif (page := self._pages.get(scope["path"])) is None:
            await send_reply(send, _not_served())
        elif scope["method"] not in ("GET", "HEAD"):
            refused = MethodNotAllowed("Only GET and HEAD are allowed here.", "GET, HEAD")
            await send_reply(_ObservedSend(send), handle_error(refused))
        else:
            observed = _ObservedSend(send)
            try:
                found = await (page.serve(scope) if isinstance(page, PageRoute) else page())
            except ChatdError as error:
                found = handle_error(error)
            await send_reply(observed, found)


def _not_served() -> ApiReply:
    return handle_error(NotFound("Only /healthz, /readyz and /metrics are served here."))


def handle_error(error: Exception) -> ApiReply:
    """The reply for any error. Logs errors of the server."""
    found = error_reply(error)
    if found.status == 500:
        log.error(LogEvent(event="request_failed", explanation="a bug"), exc_info=error)
    content = msgspec.json.encode(found.body) + b"\n"
    return ApiReply(status=found.status, body=content, headers=found.headers)


class _ObservedSend:
    """Records the status of the response and adds the headers that every response has."""

    def __init__(self, send: Send, more: Sequence[tuple[bytes, bytes]] = ()) -> None:
        """`more` are headers of this response."""
        self.wrapped = send
        self._more = more
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if self.status == 0:
            message = self._first(message)
        await self.wrapped(message)

    async def together(self, start: Message, *rest: Message) -> None:
        """The start of a response and what follows it, by one write."""
        await send_together(self.wrapped, self._first(start), *rest)

    def _first(self, message: Message) -> Message:
        match message["type"]:
            case "http.response.start":
                self.status = message["status"]
                headers = [*message["headers"], *COMMON_HEADERS, *self._more]
                if all(name != b"cache-control" for name, _ in headers):
                    headers.append(_NO_STORE)
                return {**message, "headers": headers}
            case "websocket.accept":
                self.status = 101
                return message
            case _:
                return message

"""Routes of MCP servers: as administrators configure them, and as the caller uses and connects to
them.
"""

from typing import Final
from urllib.parse import parse_qsl

from chatd.api.accounts.plain_pages import connected_page, failed_page
from chatd.api.accounts.site import read_cookie, set_cookie
from chatd.api.deps import ApiDeps
from chatd.api.errors import error_reply
from chatd.api.pages import ItemPosition, Paging, cut_whole, page_reply
from chatd.api.request import (
    MAX_QUERY_PARAMETERS,
    NO_CONTENT,
    ApiReply,
    ApiRequest,
    BodySpec,
    header,
    reply,
)
from chatd.api.route import PREFIX, ApiRoute
from chatd.api.schemas.messages import from_rows
from chatd.domain.errors import Conflict, Forbidden, InvalidInput, NotFound
from chatd.domain.ids import McpServerId
from chatd.domain.list_page import ListQuery
from chatd.domain.mcp.oauth import CLIENT_NAME, document_url
from chatd.domain.mcp.servers import CONNECT_LIFETIME, ConnectAnswer, McpCredentials, is_allowed
from chatd.services.mcp_bodies import (
    CreateMcpServerBody,
    McpCallbackQuery,
    McpClientReply,
    McpConnectionReply,
    McpConnectReply,
    McpDisconnectReply,
    McpOauthReply,
    McpServerConfigPage,
    McpServerConfigReply,
    McpServerPage,
    McpServerReply,
    McpTrialReply,
    McpTrialTool,
    UpdateMcpServerBody,
)
from chatd.services.mcp_servers import McpServers
from chatd.store.deployment.mcp_servers import ServerConnection, StoredMcpServer

CREATE: Final = BodySpec(CreateMcpServerBody)
UPDATE: Final = BodySpec(UpdateMcpServerBody)
_SECRET_CODES: Final = ("secret_key_missing", "secret_unreadable")
_CONFIG: Final = "/mcp-server-configs/{mcp_server_id}"


def require_mcp(deps: ApiDeps) -> McpServers:
    if deps.mcp is None:
        raise NotFound("This server has no MCP servers.")
    return deps.mcp


class McpServerConfigRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps

    def routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="GET /mcp-server-configs",
                permission="config.read",
                summary="List MCP servers as they are configured, without their secrets",
                description="Those of the settings and of the database. `source` tells which; only"
                " those of the database can be changed over the API.",
                handle=self.list_mcp_server_configs,
                query=ListQuery,
                replies={200: McpServerConfigPage},
            ),
            ApiRoute(
                endpoint="POST /mcp-server-configs",
                permission="config.write",
                summary="Add an MCP server",
                description="Every replica knows it within a second. Test it with `POST"
                " /mcp-server-configs/{mcp_server_id}/test`. For `oauth2` without `oauth`, chatd"
                " finds the authorization server and registers itself when the first user"
                " connects.",
                handle=self.create_mcp_server,
                body_spec=CREATE,
                replies={201: McpServerConfigReply},
                errors=(
                    *_SECRET_CODES,
                    *("name_taken", "managed_by_settings", "too_many_mcp_servers"),
                ),
            ),
            ApiRoute(
                endpoint=f"GET {_CONFIG}",
                permission="config.read",
                summary="Get an MCP server as it is configured, without its secrets",
                description="Of headers only the names are shown.",
                handle=self.get_mcp_server_config,
                replies={200: McpServerConfigReply},
            ),
            ApiRoute(
                endpoint=f"PATCH {_CONFIG}",
                permission="config.write",
                summary="Change an MCP server",
                description="The next step of every chat uses it, on every replica. A change of"
                " the address, of the kind of auth, of the client or of the scopes ends the"
                " connections of all users.",
                handle=self.update_mcp_server,
                body_spec=UPDATE,
                replies={200: McpServerConfigReply},
                errors=(*_SECRET_CODES, "name_taken", "managed_by_settings"),
            ),
            ApiRoute(
                endpoint=f"DELETE {_CONFIG}",
                permission="config.write",
                summary="Delete an MCP server with the connections of all users",
                description="Chats that use it go on without its tools.",
                handle=self.delete_mcp_server,
                replies={204: None},
                errors=("managed_by_settings",),
            ),
            ApiRoute(
                endpoint=f"POST {_CONFIG}/test",
                permission="config.write",
                summary="Connect to an MCP server and list its tools, or explain the failure",
                description="Takes at most half a minute. A failure is a reply of status 200 with"
                " `ok` false and the problem. A server with `oauth2` is asked with the caller's own"
                " connection.",
                handle=self.test_mcp_server,
                replies={200: McpTrialReply},
            ),
        )

    async def list_mcp_server_configs(self, request: ApiRequest) -> ApiReply:
        paging = Paging(request, request.query(ListQuery), ItemPosition)
        found = await self._deps.retry(require_mcp(self._deps).directory.all)
        shown, cursor = cut_whole(paging, found, lambda one: one.id)
        return page_reply(McpServerConfigPage, (config_reply(one) for one in shown), cursor)

    async def create_mcp_server(self, request: ApiRequest) -> ApiReply:
        body = await request.body(CREATE)
        by = self._deps.author(request)
        made = await require_mcp(self._deps).control.create_server(by, body)
        headers = {"location": f"{PREFIX}/mcp-server-configs/{made.id}"}
        return reply(config_reply(made), 201, headers)

    async def get_mcp_server_config(self, request: ApiRequest) -> ApiReply:
        control = require_mcp(self._deps).control
        found = await self._deps.retry(lambda: control.get_server(request.mcp_server_id))
        return reply(config_reply(found))

    async def update_mcp_server(self, request: ApiRequest) -> ApiReply:
        body, by = await request.body(UPDATE), self._deps.author(request)
        control = require_mcp(self._deps).control
        return reply(config_reply(await control.update_server(by, request.mcp_server_id, body)))

    async def delete_mcp_server(self, request: ApiRequest) -> ApiReply:
        by = self._deps.author(request)
        await require_mcp(self._deps).control.delete_server(by, request.mcp_server_id)
        return NO_CONTENT

    async def test_mcp_server(self, request: ApiRequest) -> ApiReply:
        mcp = require_mcp(self._deps)
        stored = await mcp.control.get_server(request.mcp_server_id)
        found = await mcp.trials.test(stored, request.caller.user_id)
        server = stored.server
        tools = tuple(
            McpTrialTool(
                name=tool.name,
                description=tool.description,
                is_used=is_allowed(tool.name, server.allow, server.deny),
            )
            for tool in found.tools
        )
        return reply(
            McpTrialReply(
                ok=not found.problem,
                problem=found.problem,
                duration_ms=found.duration_ms,
                tools=tools,
            )
        )


def config_reply(stored: StoredMcpServer) -> McpServerConfigReply:
    server, credentials = stored.server, stored.credentials
    return from_rows(
        McpServerConfigReply,
        server,
        stored,
        credentials,
        oauth=_oauth_reply(credentials),
        redirect_path=f"{PREFIX}/mcp-servers/{server.id}/callback",
    )


def _oauth_reply(credentials: McpCredentials) -> McpOauthReply | None:
    setup = credentials.oauth
    if setup is None:
        return None
    return from_rows(McpOauthReply, setup, has_client_secret=credentials.has_client_secret)


SECURE_PREFIX: Final = "__Host-chatd_mcp_"
PLAIN_PREFIX: Final = "chatd_mcp_"
_ONE: Final = "/mcp-servers/{mcp_server_id}"
_OAUTH_CODES: Final = ("mcp_oauth_failed", "secret_key_missing", "secret_unreadable")


class McpServerRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps
        self._site = deps.accounts.site

    def routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="GET /mcp-servers",
                permission="catalog.read",
                summary="List the MCP servers that your chats can use, and your connections",
                description="Choose them for a chat by `mcp_server_ids`. Those with `force_on` are"
                " used by every chat.",
                handle=self.list_mcp_servers,
                query=ListQuery,
                replies={200: McpServerPage},
            ),
            ApiRoute(
                endpoint=f"POST {_ONE}/connect",
                permission="account.write",
                summary="Begin to connect to an MCP server; send the browser to the reply's URL",
                description="The reply sets a cookie for ten minutes: the browser that asks must be"
                " the one that comes back. The first connection to a server finds its"
                " authorization server and registers chatd, in at most half a minute.",
                handle=self.connect_mcp_server,
                replies={200: McpConnectReply},
                errors=(*_OAUTH_CODES, "insecure_connection", "host_not_allowed"),
            ),
            ApiRoute(
                endpoint=f"GET {_ONE}/callback",
                permission="account.write",
                summary="Come back from the authorization server; the reply is a page for people",
                description="The page sends `{type: 'mcp-oauth2-complete', serverID, ok}` to the"
                " page that opened it. For a browser, errors are a page too.",
                handle=self.finish_mcp_connection,
                query=McpCallbackQuery,
                replies={200: bytes},
                reply_types=("text/html",),
                errors=(*_OAUTH_CODES, "mcp_grant_refused"),
            ),
            ApiRoute(
                endpoint=f"GET {_ONE}/client",
                permission="public",
                summary="Get chatd's description as a client, for authorization servers",
                description="For those that register no clients and read descriptions instead.",
                handle=self.get_mcp_client,
                replies={200: McpClientReply},
                errors=("host_not_allowed", "not_found"),
            ),
            ApiRoute(
                endpoint=f"DELETE {_ONE}/connection",
                permission="account.write",
                summary="Disconnect from an MCP server; the tokens are deleted and revoked",
                description="They are deleted here in any case. `failure` says why the"
                " authorization server did not revoke them.",
                handle=self.disconnect_mcp_server,
                replies={200: McpDisconnectReply},
            ),
        )

    async def list_mcp_servers(self, request: ApiRequest) -> ApiReply:
        paging = Paging(request, request.query(ListQuery), ItemPosition)
        actor, connections = request.caller.actor, require_mcp(self._deps).connections
        found = await self._deps.retry(lambda: connections.list_connections(actor))
        shown, cursor = cut_whole(paging, found, lambda one: one.stored.id)
        return page_reply(McpServerPage, (_server_reply(one) for one in shown), cursor)

    async def connect_mcp_server(self, request: ApiRequest) -> ApiReply:
        server_id = request.mcp_server_id
        self._require_cookie(request)
        connections = require_mcp(self._deps).connections
        uri = self._redirect_uri(request, server_id)
        started = await connections.start(request.caller.actor, server_id, uri)
        answer = reply(McpConnectReply(authorization_url=started.authorization_url))
        cookie = self._cookie(request, server_id, started.cookie)
        return ApiReply(body=answer.body, cookies=(cookie,))

    async def finish_mcp_connection(self, request: ApiRequest) -> ApiReply:
        server_id = request.mcp_server_id
        connections, by = require_mcp(self._deps).connections, self._deps.author(request)
        sealed = read_cookie(request.scope, self._cookie_name(request, server_id))
        cleared = self._cookie(request, server_id, "")
        try:
            answer = _read_answer(request.scope["query_string"])
            stored = await connections.finish(by, server_id, answer, sealed)
        except (Conflict, NotFound, InvalidInput) as error:
            if "text/html" not in (request.header("accept") or ""):
                raise
            return failed_page(server_id, error.message, error_reply(error).status, cleared)
        return connected_page(server_id, stored.server.display_name, cleared)

    async def get_mcp_client(self, request: ApiRequest) -> ApiReply:
        server_id = request.mcp_server_id
        self._site.require_host(request.scope)
        directory = require_mcp(self._deps).directory
        stored = await self._deps.retry(lambda: directory.find(server_id))
        if stored is None or stored.server.auth != "oauth2":
            raise NotFound("There is no such MCP server.")
        uri = self._redirect_uri(request, server_id)
        described = McpClientReply(
            client_id=document_url(uri), client_name=CLIENT_NAME, redirect_uris=(uri,)
        )
        return reply(described)

    async def disconnect_mcp_server(self, request: ApiRequest) -> ApiReply:
        connections, by = require_mcp(self._deps).connections, self._deps.author(request)
        ended = await connections.disconnect(by, request.mcp_server_id)
        return reply(McpDisconnectReply(revoked=ended.revoked, failure=ended.failure))

    def _require_cookie(self, request: ApiRequest) -> None:
        self._site.require_host(request.scope)
        if not self._site.can_hold_cookie(request.scope):
            raise Forbidden(
                "Browsers connect to MCP servers over https, or from this machine. The operator can"
                " put a proxy with https before this server and set server.url to its address.",
                code="insecure_connection",
            )

    def _redirect_uri(self, request: ApiRequest, server_id: McpServerId) -> str:
        """On the host in use: the cookie belongs to it."""
        scheme = "https" if self._site.is_secure(request.scope) else "http"
        host = header(request.scope, b"host")
        return f"{scheme}://{host}{PREFIX}/mcp-servers/{server_id}/callback"

    def _cookie_name(self, request: ApiRequest, server_id: McpServerId) -> str:
        """One for each server, so that several connections can be begun at once."""
        prefix = SECURE_PREFIX if self._site.is_secure(request.scope) else PLAIN_PREFIX
        return f"{prefix}{server_id.hex}"

    def _cookie(self, request: ApiRequest, server_id: McpServerId, value: str) -> str:
        lifetime = CONNECT_LIFETIME if value else CONNECT_LIFETIME * 0
        secure = self._site.is_secure(request.scope)
        return set_cookie(self._cookie_name(request, server_id), value, lifetime, secure=secure)


def _read_answer(query: bytes) -> ConnectAnswer:
    """Authorization servers add parameters of their own, so unknown ones are ignored."""
    try:
        pairs = parse_qsl(query.decode("latin-1"), max_num_fields=MAX_QUERY_PARAMETERS)
    except ValueError:
        raise InvalidInput("query", f"at most {MAX_QUERY_PARAMETERS} parameters") from None
    found = dict(pairs)
    names = McpCallbackQuery.__struct_fields__
    return ConnectAnswer(**{name: found.get(name) for name in names})


def _server_reply(found: ServerConnection) -> McpServerReply:
    server, token = found.stored.server, found.token
    connection = McpConnectionReply(
        state=found.state,
        reason=found.reason,
        connected_at=None if token is None else token.created_at,
        expires_at=None if token is None else token.expires_at,
    )
    return from_rows(
        McpServerReply, server, description=found.stored.description, connection=connection
    )

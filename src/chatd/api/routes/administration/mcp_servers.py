"""Routes of MCP servers as they are configured, for administrators."""

from typing import Final

from chatd.api.deps import ApiDeps
from chatd.api.pages import ItemPosition, Paging, cut_whole
from chatd.api.request import NO_CONTENT, ApiReply, ApiRequest, BodySpec, reply
from chatd.api.route import PREFIX, ApiRoute
from chatd.domain.errors import NotFound
from chatd.domain.list_page import ListQuery
from chatd.domain.mcp.servers import McpCredentials, is_allowed
from chatd.services.mcp_bodies import (
    CreateMcpServerBody,
    McpOauthReply,
    McpServerConfigPage,
    McpServerConfigReply,
    McpTrialReply,
    McpTrialTool,
    UpdateMcpServerBody,
)
from chatd.services.mcp_servers import McpServers
from chatd.store.mcp_servers import StoredMcpServer

CREATE: Final = BodySpec(CreateMcpServerBody)
UPDATE: Final = BodySpec(UpdateMcpServerBody)
_SECRET_CODES: Final = ("secret_key_missing", "secret_unreadable")
_ONE: Final = "/mcp-server-configs/{mcp_server_id}"


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
                endpoint=f"GET {_ONE}",
                permission="config.read",
                summary="Get an MCP server as it is configured, without its secrets",
                description="Of headers only the names are shown.",
                handle=self.get_mcp_server_config,
                replies={200: McpServerConfigReply},
            ),
            ApiRoute(
                endpoint=f"PATCH {_ONE}",
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
                endpoint=f"DELETE {_ONE}",
                permission="config.write",
                summary="Delete an MCP server with the connections of all users",
                description="Chats that use it go on without its tools.",
                handle=self.delete_mcp_server,
                replies={204: None},
                errors=("managed_by_settings",),
            ),
            ApiRoute(
                endpoint=f"POST {_ONE}/test",
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
        items = tuple(config_reply(one) for one in shown)
        page = McpServerConfigPage(items=items, has_more=cursor is not None, next_cursor=cursor)
        return reply(page)

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
    return McpServerConfigReply(
        id=server.id,
        slug=server.slug,
        display_name=server.display_name,
        description=stored.description,
        url=server.url,
        transport=server.transport,
        auth=server.auth,
        enabled=server.enabled,
        availability=server.availability,
        allow=server.allow,
        deny=server.deny,
        model_intent=server.model_intent,
        allow_in_plan_mode=server.allow_in_plan_mode,
        api_key_header=credentials.api_key_header,
        has_api_key=credentials.has_api_key,
        header_names=credentials.header_names,
        oauth=_oauth_reply(credentials),
        scopes=credentials.scopes,
        redirect_path=f"{PREFIX}/mcp-servers/{server.id}/callback",
        source=stored.source,
        version=server.version,
        created_at=stored.created_at,
        updated_at=stored.updated_at,
    )


def _oauth_reply(credentials: McpCredentials) -> McpOauthReply | None:
    setup = credentials.oauth
    if setup is None:
        return None
    return McpOauthReply(
        client_id=setup.client_id,
        authorization_url=setup.authorization_url,
        token_url=setup.token_url,
        revocation_url=setup.revocation_url,
        token_auth=setup.token_auth,
        has_client_secret=credentials.has_client_secret,
    )

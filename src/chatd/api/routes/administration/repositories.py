"""Routes for connections to repositories: for administrators, and for deliveries of git hosts."""

from typing import Final

from chatd.api.accounts.request_limits import LookUpLanes
from chatd.api.deps import ApiDeps
from chatd.api.errors import RateLimited
from chatd.api.pages import ItemPosition, NumberPosition, Paging, cut_whole, page_reply
from chatd.api.request import (
    NO_CONTENT,
    ApiReply,
    ApiRequest,
    BodySpec,
    read_body,
    reply,
)
from chatd.api.route import ApiRoute
from chatd.domain.deployment.repositories import MAX_EVENT_BYTES
from chatd.domain.list_page import ListPage, ListQuery
from chatd.services.repositories import (
    ConnectionConfig,
    ConnectionPatch,
    ConnectionTrial,
    DeliveryReceipt,
    DeliveryRefused,
    EventRecord,
    NewConnectionBody,
    NewConnectionConfig,
    TooManyEvents,
    connection_config,
    event_record,
)
from chatd.store.deployment import repositories, repository_work

FULL_RETRY_S: Final = 60.0
"""When a host may deliver again what was refused because too many events wait."""
_CREATE: Final = BodySpec(NewConnectionBody)
_PATCH: Final = BodySpec(ConnectionPatch)


class ConnectionPage(ListPage[ConnectionConfig], frozen=True, kw_only=True):
    """The connections to repositories."""


class EventPage(ListPage[EventRecord], frozen=True, kw_only=True):
    """The events of a connection, newest first. Ended ones are kept for 30 days."""


class RepositoryRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps
        self._lanes = LookUpLanes(deps.env.clock)

    def routes(self) -> tuple[ApiRoute, ...]:
        one = "/repository-connections/{connection_id}"
        return (
            ApiRoute(
                endpoint="POST /repository-connections",
                permission="config.write",
                summary="Add a connection: issues and pull requests of a git host start chats",
                handle=self.create_repository_connection,
                body_spec=_CREATE,
                replies={201: NewConnectionConfig},
                errors=(
                    "too_many_repository_connections",
                    "repository_connection_exists",
                    "secret_key_missing",
                ),
            ),
            ApiRoute(
                endpoint="GET /repository-connections",
                permission="config.read",
                summary="List the connections to repositories",
                handle=self.list_repository_connections,
                query=ListQuery,
                replies={200: ConnectionPage},
            ),
            ApiRoute(
                endpoint=f"GET {one}",
                permission="config.read",
                summary="Get a connection to repositories",
                handle=self.get_repository_connection,
                replies={200: ConnectionConfig},
            ),
            ApiRoute(
                endpoint=f"PATCH {one}",
                permission="config.write",
                summary="Change a connection to repositories, disable it, or give it another token",
                handle=self.change_repository_connection,
                body_spec=_PATCH,
                replies={200: ConnectionConfig},
                errors=("repository_connection_exists", "secret_key_missing"),
            ),
            ApiRoute(
                endpoint=f"DELETE {one}",
                permission="config.write",
                summary="Delete a connection to repositories, with its events; its chats stay",
                handle=self.delete_repository_connection,
                replies={204: None},
            ),
            ApiRoute(
                endpoint=f"POST {one}/test",
                permission="config.write",
                summary="Ask the git host whose the token of a connection is",
                handle=self.try_repository_connection,
                replies={200: ConnectionTrial},
            ),
            ApiRoute(
                endpoint=f"GET {one}/events",
                permission="config.read",
                summary="List the events that the git host delivered and that start something",
                handle=self.list_repository_events,
                query=ListQuery,
                replies={200: EventPage},
            ),
            ApiRoute(
                endpoint=f"POST {one}/events",
                permission="public",
                summary="Deliver an event, as the webhook of the git host",
                description="The host signs it with the secret of the connection. It is stored"
                " before the reply; the same event starts nothing twice.",
                handle=self.receive_repository_event,
                raw_body=True,
                body_types=("application/json",),
                replies={202: DeliveryReceipt},
                errors=("signature_invalid", "too_large", "request_timeout", "rate_limited"),
            ),
        )

    async def create_repository_connection(self, request: ApiRequest) -> ApiReply:
        deps, body = self._deps, await request.body(_CREATE)
        made = await deps.repositories.add(deps.author(request), body)
        return reply(made, 201, {"location": f"/api/v1/repository-connections/{made.id}"})

    async def list_repository_connections(self, request: ApiRequest) -> ApiReply:
        paging = Paging(request, request.query(ListQuery), ItemPosition)
        found = await self._deps.read(repositories.list_all, request.caller.actor)
        shown, cursor = cut_whole(paging, found, lambda stored: stored.connection.id)
        return page_reply(ConnectionPage, map(connection_config, shown), cursor)

    async def get_repository_connection(self, request: ApiRequest) -> ApiReply:
        actor = request.caller.actor
        found = await self._deps.read(repositories.get, actor, request.connection_id)
        return reply(connection_config(found))

    async def change_repository_connection(self, request: ApiRequest) -> ApiReply:
        deps, body = self._deps, await request.body(_PATCH)
        author = deps.author(request)
        return reply(await deps.repositories.update(author, request.connection_id, body))

    async def delete_repository_connection(self, request: ApiRequest) -> ApiReply:
        deps = self._deps
        await deps.repositories.delete(deps.author(request), request.connection_id)
        return NO_CONTENT

    async def try_repository_connection(self, request: ApiRequest) -> ApiReply:
        deps, caller = self._deps, request.caller
        deps.accounts.limits.take_test(caller)
        found = await deps.repositories.try_connection(caller.actor, request.connection_id)
        return reply(found)

    async def list_repository_events(self, request: ApiRequest) -> ApiReply:
        deps, actor, connection_id = self._deps, request.caller.actor, request.connection_id
        paging = Paging(request, request.query(ListQuery), NumberPosition)
        await deps.read(repositories.get, actor, connection_id)
        before = None if paging.position is None else paging.position.number
        found = await deps.read(
            repository_work.list_events,
            actor,
            connection_id,
            before=before,
            limit=paging.read_limit,
        )
        shown, cursor = paging.cut(found, lambda one: NumberPosition(number=one.id))
        return page_reply(EventPage, map(event_record, shown), cursor)

    async def receive_repository_event(self, request: ApiRequest) -> ApiReply:
        """An address with many wrong signatures is checked slowly, as one with wrong tokens."""
        deps, scope = self._deps, request.scope
        announced = request.header("content-length")
        body = await read_body(request.receive, announced, MAX_EVENT_BYTES)
        headers = {
            bytes(name).decode("latin-1"): bytes(value).decode("latin-1")
            for name, value in scope["headers"]
        }
        address = deps.accounts.site.address(scope)
        async with self._lanes.lane(address):
            try:
                receipt = await deps.repositories.receive(request.connection_id, headers, body)
            except DeliveryRefused:
                self._lanes.count_wrong(address)
                raise
            except TooManyEvents as error:
                raise RateLimited(FULL_RETRY_S, error.message) from None
        return reply(receipt, 202)

"""Routes for Slack: connections, for administrators, and each user's own links."""

from typing import Final

from chatd.api.deps import ApiDeps
from chatd.api.pages import ItemPosition, NumberPosition, Paging, cut_whole, page_reply
from chatd.api.request import NO_CONTENT, ApiReply, ApiRequest, BodySpec, reply
from chatd.api.route import ApiRoute
from chatd.domain.list_page import ListPage, ListQuery
from chatd.services.slack.connections import (
    NewSlackBody,
    OwnSlackLink,
    SlackConfig,
    SlackEventRecord,
    SlackLinkCode,
    SlackPatch,
    SlackTrial,
    own_slack_link,
    slack_config,
    slack_event_record,
)
from chatd.store.deployment import slack, slack_work

_CREATE: Final = BodySpec(NewSlackBody)
_PATCH: Final = BodySpec(SlackPatch)


class SlackPage(ListPage[SlackConfig], frozen=True, kw_only=True):
    """The connections to Slack."""


class SlackEventPage(ListPage[SlackEventRecord], frozen=True, kw_only=True):
    """The events of a connection, newest first. Ended ones are kept for 30 days."""


class SlackLinkPage(ListPage[OwnSlackLink], frozen=True, kw_only=True):
    """The persons of Slack that you are."""


class SlackRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps

    def routes(self) -> tuple[ApiRoute, ...]:
        one = "/slack-connections/{slack_id}"
        return (
            ApiRoute(
                endpoint="POST /slack-connections",
                permission="config.write",
                summary="Connect a workspace of Slack, whose threads become chats",
                handle=self.create_slack_connection,
                body_spec=_CREATE,
                replies={201: SlackConfig},
                errors=(
                    "too_many_slack_connections",
                    "slack_connection_exists",
                    "secret_key_missing",
                ),
            ),
            ApiRoute(
                endpoint="GET /slack-connections",
                permission="config.read",
                summary="List the connections to Slack",
                handle=self.list_slack_connections,
                query=ListQuery,
                replies={200: SlackPage},
            ),
            ApiRoute(
                endpoint=f"GET {one}",
                permission="config.read",
                summary="Get a connection to Slack",
                handle=self.get_slack_connection,
                replies={200: SlackConfig},
            ),
            ApiRoute(
                endpoint=f"PATCH {one}",
                permission="config.write",
                summary="Change a connection to Slack, disable it, or give it other tokens",
                handle=self.change_slack_connection,
                body_spec=_PATCH,
                replies={200: SlackConfig},
                errors=("slack_connection_exists", "secret_key_missing"),
            ),
            ApiRoute(
                endpoint=f"DELETE {one}",
                permission="config.write",
                summary="Delete a connection to Slack, with its links and events; its chats stay",
                handle=self.delete_slack_connection,
                replies={204: None},
            ),
            ApiRoute(
                endpoint=f"POST {one}/test",
                permission="config.write",
                summary="Ask Slack whether it accepts both tokens, and which scopes are missing",
                handle=self.try_slack_connection,
                replies={200: SlackTrial},
            ),
            ApiRoute(
                endpoint=f"GET {one}/events",
                permission="config.read",
                summary="List the messages and presses that Slack delivered, without their texts",
                handle=self.list_slack_events,
                query=ListQuery,
                replies={200: SlackEventPage},
            ),
            ApiRoute(
                endpoint="GET /slack-links",
                permission="account.read",
                summary="List the persons of Slack that you are",
                handle=self.list_slack_links,
                query=ListQuery,
                replies={200: SlackLinkPage},
            ),
            ApiRoute(
                endpoint="POST /slack-links/code",
                permission="account.write",
                summary="Make a code that links your person of Slack, once, for ten minutes",
                handle=self.make_slack_code,
                replies={201: SlackLinkCode},
            ),
            ApiRoute(
                endpoint="DELETE /slack-links/{slack_link_id}",
                permission="account.write",
                summary="Unlink a person of Slack",
                handle=self.delete_slack_link,
                replies={204: None},
            ),
        )

    async def create_slack_connection(self, request: ApiRequest) -> ApiReply:
        deps, body = self._deps, await request.body(_CREATE)
        made = await deps.slack.add(deps.author(request), body)
        return reply(made, 201, {"location": f"/api/v1/slack-connections/{made.id}"})

    async def list_slack_connections(self, request: ApiRequest) -> ApiReply:
        paging = Paging(request, request.query(ListQuery), ItemPosition)
        found = await self._deps.read(slack.list_all, request.caller.actor)
        shown, cursor = cut_whole(paging, found, lambda stored: stored.connection.id)
        return page_reply(SlackPage, map(slack_config, shown), cursor)

    async def get_slack_connection(self, request: ApiRequest) -> ApiReply:
        found = await self._deps.read(slack.get, request.caller.actor, request.slack_id)
        return reply(slack_config(found))

    async def change_slack_connection(self, request: ApiRequest) -> ApiReply:
        deps, body = self._deps, await request.body(_PATCH)
        return reply(await deps.slack.update(deps.author(request), request.slack_id, body))

    async def delete_slack_connection(self, request: ApiRequest) -> ApiReply:
        deps = self._deps
        await deps.slack.delete(deps.author(request), request.slack_id)
        return NO_CONTENT

    async def try_slack_connection(self, request: ApiRequest) -> ApiReply:
        actor = request.caller.actor
        return reply(await self._deps.slack.try_connection(actor, request.slack_id))

    async def list_slack_events(self, request: ApiRequest) -> ApiReply:
        deps, actor, connection_id = self._deps, request.caller.actor, request.slack_id
        paging = Paging(request, request.query(ListQuery), NumberPosition)
        await deps.read(slack.get, actor, connection_id)
        before = None if paging.position is None else paging.position.number
        found = await deps.read(
            slack_work.list_events, actor, connection_id, before=before, limit=paging.read_limit
        )
        shown, cursor = paging.cut(found, lambda one: NumberPosition(number=one.id))
        return page_reply(SlackEventPage, map(slack_event_record, shown), cursor)

    async def list_slack_links(self, request: ApiRequest) -> ApiReply:
        paging = Paging(request, request.query(ListQuery), ItemPosition)
        found = await self._deps.read(slack.list_links, request.caller.actor)
        shown, cursor = cut_whole(paging, found, lambda link: link.id)
        return page_reply(SlackLinkPage, map(own_slack_link, shown), cursor)

    async def make_slack_code(self, request: ApiRequest) -> ApiReply:
        return reply(await self._deps.slack.make_code(request.caller.actor), 201)

    async def delete_slack_link(self, request: ApiRequest) -> ApiReply:
        deps = self._deps
        await deps.slack.unlink(deps.author(request), request.slack_link_id)
        return NO_CONTENT

"""Routes of groups and their members, for administrators."""

from typing import Final
from uuid import UUID

from msgspec import Struct

from chatd.api.deps import ApiDeps
from chatd.api.pages import Paging
from chatd.api.request import NO_CONTENT, ApiReply, ApiRequest, BodySpec, reply
from chatd.api.route import PREFIX, ApiRoute
from chatd.api.routes.account.account_replies import group_reply, user_reply
from chatd.api.routes.administration.users import NamePosition
from chatd.api.schemas.accounts import GroupBody, GroupPage, GroupReply, UserPage
from chatd.domain.ids import GroupId, UserId
from chatd.domain.list_page import ListQuery
from chatd.store.account import groups

_GROUP: Final = BodySpec(GroupBody)


class IdPosition(Struct, frozen=True, array_like=True):
    """The position in a list that is ordered by id."""

    id: UUID


class GroupRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps

    def routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="GET /groups",
                permission="config.read",
                summary="List groups by name",
                handle=self.list_groups,
                query=ListQuery,
                replies={200: GroupPage},
            ),
            ApiRoute(
                endpoint="POST /groups",
                permission="config.write",
                summary="Create a group",
                handle=self.create_group,
                body_spec=_GROUP,
                replies={201: GroupReply},
                errors=("name_taken",),
            ),
            ApiRoute(
                endpoint="GET /groups/{group_id}",
                permission="config.read",
                summary="Get a group",
                handle=self.get_group,
                replies={200: GroupReply},
            ),
            ApiRoute(
                endpoint="PATCH /groups/{group_id}",
                permission="config.write",
                summary="Rename a group",
                handle=self.rename_group,
                body_spec=_GROUP,
                replies={200: GroupReply},
                errors=("name_taken",),
            ),
            ApiRoute(
                endpoint="DELETE /groups/{group_id}",
                permission="config.write",
                summary="Delete a group; what is shared with it is no longer shared",
                handle=self.delete_group,
                replies={204: None},
            ),
            *self._member_routes(),
        )

    def _member_routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="GET /groups/{group_id}/members",
                permission="config.read",
                summary="List the members of a group",
                handle=self.list_group_members,
                query=ListQuery,
                replies={200: UserPage},
            ),
            ApiRoute(
                endpoint="PUT /groups/{group_id}/members/{user_id}",
                permission="config.write",
                summary="Add a user to a group",
                handle=self.add_group_member,
                replies={200: GroupReply},
            ),
            ApiRoute(
                endpoint="DELETE /groups/{group_id}/members/{user_id}",
                permission="config.write",
                summary="Remove a user from a group",
                handle=self.remove_group_member,
                replies={204: None},
            ),
        )

    async def list_groups(self, request: ApiRequest) -> ApiReply:
        paging = Paging(request, request.query(ListQuery), NamePosition)
        pool, actor, last = self._deps.pool, request.caller.actor, paging.position
        after = None if last is None else last.name
        found = await self._deps.retry(
            lambda: groups.list_page(pool, actor, after=after, limit=paging.read_limit)
        )
        shown, cursor = paging.cut(found, lambda group: NamePosition(group.name.lower()))
        items = tuple(map(group_reply, shown))
        return reply(GroupPage(items=items, has_more=cursor is not None, next_cursor=cursor))

    async def create_group(self, request: ApiRequest) -> ApiReply:
        deps, body = self._deps, await request.body(_GROUP)
        group_id = GroupId(deps.env.new_id())
        async with deps.pool.transaction() as session:
            group = await groups.create(
                session, request.caller.actor, group_id, body.name, ip=self._ip(request)
            )
        return reply(group_reply(group), 201, {"location": f"{PREFIX}/groups/{group.id}"})

    async def get_group(self, request: ApiRequest) -> ApiReply:
        pool, actor = self._deps.pool, request.caller.actor
        return reply(
            group_reply(await self._deps.retry(lambda: groups.get(pool, actor, request.group_id)))
        )

    async def rename_group(self, request: ApiRequest) -> ApiReply:
        body = await request.body(_GROUP)
        async with self._deps.pool.transaction() as session:
            group = await groups.rename(
                session, request.caller.actor, request.group_id, body.name, ip=self._ip(request)
            )
        return reply(group_reply(group))

    async def delete_group(self, request: ApiRequest) -> ApiReply:
        async with self._deps.pool.transaction() as session:
            await groups.delete(
                session, request.caller.actor, request.group_id, ip=self._ip(request)
            )
        return NO_CONTENT

    async def list_group_members(self, request: ApiRequest) -> ApiReply:
        paging = Paging(request, request.query(ListQuery), IdPosition)
        deps, actor, last = self._deps, request.caller.actor, paging.position
        group = await deps.retry(lambda: groups.get(deps.pool, actor, request.group_id))
        after = None if last is None else UserId(last.id)
        found = await deps.retry(
            lambda: groups.list_members(
                deps.pool, actor, group.id, after=after, limit=paging.read_limit
            )
        )
        shown, cursor = paging.cut(found, lambda user: IdPosition(user.id))
        items = tuple(map(user_reply, shown))
        return reply(UserPage(items=items, has_more=cursor is not None, next_cursor=cursor))

    async def add_group_member(self, request: ApiRequest) -> ApiReply:
        async with self._deps.pool.transaction() as session:
            await groups.add_member(
                session,
                request.caller.actor,
                request.group_id,
                request.user_id,
                ip=self._ip(request),
            )
            group = await groups.get(session, request.caller.actor, request.group_id)
        return reply(group_reply(group))

    async def remove_group_member(self, request: ApiRequest) -> ApiReply:
        async with self._deps.pool.transaction() as session:
            await groups.remove_member(
                session,
                request.caller.actor,
                request.group_id,
                request.user_id,
                ip=self._ip(request),
            )
        return NO_CONTENT

    def _ip(self, request: ApiRequest) -> str | None:
        return self._deps.accounts.site.address(request.scope)

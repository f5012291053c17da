"""Routes of users and of groups with their members, for administrators."""

from typing import Annotated, Final
from uuid import UUID

from msgspec import Meta, Struct, structs

from chatd.api.deps import ApiDeps
from chatd.api.pages import Paging, page_reply
from chatd.api.request import NO_CONTENT, ApiReply, ApiRequest, BodySpec, reply
from chatd.api.route import PREFIX, ApiRoute
from chatd.api.schemas.accounts import (
    GroupBody,
    GroupPage,
    GroupReply,
    NewPasswordBody,
    NewUserBody,
    UserPage,
    UserPatchBody,
    UserReply,
    group_reply,
    user_reply,
)
from chatd.domain.access.accounts import CredentialKind, check_email, check_password, check_username
from chatd.domain.errors import InvalidInput, NotFound
from chatd.domain.ids import GroupId, UserId
from chatd.domain.list_page import ListQuery
from chatd.store.account import credentials, groups, users
from chatd.store.account.users import NewUser, UserChanges

_NEW: Final = BodySpec(NewUserBody)
_PATCH: Final = BodySpec(UserPatchBody)
_PASSWORD: Final = BodySpec(NewPasswordBody)


class NamePosition(Struct, frozen=True, array_like=True):
    """The position in a list that is ordered by name."""

    name: Annotated[str, Meta(max_length=200)]


class UserRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps

    def routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="GET /users",
                permission="config.read",
                summary="List users by username",
                handle=self.list_users,
                query=ListQuery,
                replies={200: UserPage},
            ),
            ApiRoute(
                endpoint="POST /users",
                permission="config.write",
                summary="Create a user or a service account",
                handle=self.create_user,
                body_spec=_NEW,
                replies={201: UserReply},
                errors=("username_taken", "email_taken"),
            ),
            ApiRoute(
                endpoint="GET /users/{user_id}",
                permission="config.read",
                summary="Get a user",
                handle=self.get_user,
                replies={200: UserReply},
            ),
            ApiRoute(
                endpoint="PATCH /users/{user_id}",
                permission="config.write",
                summary="Change a user: names, role, or suspend and activate it",
                handle=self.change_user,
                body_spec=_PATCH,
                replies={200: UserReply},
                errors=("username_taken", "email_taken", "last_administrator"),
            ),
            ApiRoute(
                endpoint="DELETE /users/{user_id}",
                permission="config.write",
                summary="Delete a user; its chats stay and administrators can read them",
                handle=self.delete_user,
                replies={204: None},
                errors=("last_administrator",),
            ),
            ApiRoute(
                endpoint="POST /users/{user_id}/password",
                permission="config.write",
                summary="Set a user's password; all sessions of the user end",
                handle=self.set_user_password,
                body_spec=_PASSWORD,
                replies={200: UserReply},
                errors=("service_account",),
            ),
        )

    async def list_users(self, request: ApiRequest) -> ApiReply:
        paging = Paging(request, request.query(ListQuery), NamePosition)
        actor, last = request.caller.actor, paging.position
        after = None if last is None else last.name
        found = await self._deps.read(users.list_page, actor, after=after, limit=paging.read_limit)
        shown, cursor = paging.cut(found, lambda user: NamePosition(user.username.lower()))
        return page_reply(UserPage, map(user_reply, shown), cursor)

    async def create_user(self, request: ApiRequest) -> ApiReply:
        deps, body = self._deps, await request.body(_NEW)
        password_hash = None
        if body.password is not None:
            if body.is_service:
                raise InvalidInput("password", "a service account has none")
            password = check_password(body.password)
            password_hash = await deps.accounts.passwords.make_hash(password)
        new = NewUser(
            id=UserId(deps.env.new_id()),
            username=check_username(body.username),
            role=body.role,
            email=None if body.email is None else check_email(body.email),
            name=body.name,
            is_service=body.is_service,
            password_hash=password_hash,
        )
        async with deps.pool.transaction() as session:
            user = await users.create(session, request.caller.actor, new, ip=self._ip(request))
        return reply(user_reply(user), 201, {"location": f"{PREFIX}/users/{user.id}"})

    async def get_user(self, request: ApiRequest) -> ApiReply:
        actor = request.caller.actor
        user = await self._deps.read(users.get, actor, request.user_id)
        if user is None:
            raise NotFound("There is no such user.")
        return reply(user_reply(user))

    async def change_user(self, request: ApiRequest) -> ApiReply:
        """A suspension is published with the write: within a second no replica accepts a
        credential of the user. Its tokens work again after an activation; its sessions end."""
        body = await request.body(_PATCH)
        if isinstance(body.username, str):
            check_username(body.username)
        if isinstance(body.email, str):
            check_email(body.email)
        changes = UserChanges(**structs.asdict(body))
        async with self._deps.pool.transaction() as session:
            user = await users.update(
                session, request.caller.actor, request.user_id, changes, ip=self._ip(request)
            )
            if not user.is_active:
                kinds: tuple[CredentialKind, ...] = ("session", "link", "ticket")
                await credentials.revoke_of_user(session, request.caller.actor, user.id, kinds)
        return reply(user_reply(user))

    async def delete_user(self, request: ApiRequest) -> ApiReply:
        async with self._deps.pool.transaction() as session:
            await users.delete(session, request.caller.actor, request.user_id, ip=self._ip(request))
        return NO_CONTENT

    async def set_user_password(self, request: ApiRequest) -> ApiReply:
        deps, actor, user_id = self._deps, request.caller.actor, request.user_id
        body = await request.body(_PASSWORD)
        new_hash = await deps.accounts.passwords.make_hash(check_password(body.password))
        async with deps.pool.transaction() as session:
            user = await users.set_password(session, actor, user_id, new_hash, ip=self._ip(request))
            await credentials.revoke_of_user(session, actor, user_id, ("session", "link"))
        return reply(user_reply(user))

    def _ip(self, request: ApiRequest) -> str | None:
        return self._deps.accounts.site.address(request.scope)


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
        actor, last = request.caller.actor, paging.position
        after = None if last is None else last.name
        found = await self._deps.read(groups.list_page, actor, after=after, limit=paging.read_limit)
        shown, cursor = paging.cut(found, lambda group: NamePosition(group.name.lower()))
        return page_reply(GroupPage, map(group_reply, shown), cursor)

    async def create_group(self, request: ApiRequest) -> ApiReply:
        deps, body = self._deps, await request.body(_GROUP)
        group_id = GroupId(deps.env.new_id())
        async with deps.pool.transaction() as session:
            group = await groups.create(
                session, request.caller.actor, group_id, body.name, ip=self._ip(request)
            )
        return reply(group_reply(group), 201, {"location": f"{PREFIX}/groups/{group.id}"})

    async def get_group(self, request: ApiRequest) -> ApiReply:
        actor = request.caller.actor
        return reply(group_reply(await self._deps.read(groups.get, actor, request.group_id)))

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
        group = await deps.read(groups.get, actor, request.group_id)
        after = None if last is None else UserId(last.id)
        found = await deps.read(
            groups.list_members, actor, group.id, after=after, limit=paging.read_limit
        )
        shown, cursor = paging.cut(found, lambda user: IdPosition(user.id))
        return page_reply(UserPage, map(user_reply, shown), cursor)

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

"""Routes that create, list, change and delete the caller's personal skills."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, ClassVar, Final
from uuid import UUID

from msgspec import UNSET, Meta, Struct, UnsetType

from chatd.api.deps import ApiDeps
from chatd.api.pages import ItemPosition, Paging, cut_whole, page_reply
from chatd.api.request import NO_CONTENT, ApiReply, ApiRequest, BodySpec, reply
from chatd.api.route import ApiRoute
from chatd.api.schemas.messages import from_rows
from chatd.domain.description import CREATED_AT, UPDATED_AT, describe
from chatd.domain.errors import InvalidInput
from chatd.domain.list_page import ListPage, ListQuery
from chatd.store.account import skills
from chatd.store.account.skills import PersonalSkill, SkillPatch

# Bodies and replies about personal skills. Docstrings here are part of the OpenAPI document.

MAX_NAME_CHARS = 256
MAX_DESCRIPTION_BYTES = 4 * 1024
MAX_BODY_BYTES = 64 * 1024

_ID = "5d0c7e7e-3c55-4d0a-9a55-0f3a4b1c2d3e"
_NAME = "release-notes"
_DESCRIPTION = "Writes release notes from the git log."
_BODY = "Read the log since the last tag. Group the changes by what users notice."

SkillName = Annotated[str, Meta(max_length=MAX_NAME_CHARS, pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
SkillText = Annotated[str, Meta(min_length=1, pattern=r"\S")]

_NAME_TEXT = "Its name: lower-case words of letters and digits, joined by dashes."
_DESCRIPTION_TEXT = "What it is for; the model decides by it. At most 4 KiB."
_BODY_TEXT = "The instructions, as Markdown. At most 64 KiB."


class NewSkillBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A skill to create."""

    openapi_example: ClassVar[Mapping[str, object]] = {
        "name": _NAME,
        "description": _DESCRIPTION,
        "body": _BODY,
    }

    name: Annotated[SkillName, describe(_NAME_TEXT, _NAME)]
    description: Annotated[SkillText, describe(_DESCRIPTION_TEXT, _DESCRIPTION)]
    body: Annotated[SkillText, describe(_BODY_TEXT, _BODY)]


class PatchSkillBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to change of a skill. Fields that are not named stay."""

    openapi_example: ClassVar[Mapping[str, object]] = {"description": _DESCRIPTION}

    name: Annotated[SkillName | UnsetType, describe(_NAME_TEXT, _NAME)] = UNSET
    description: Annotated[SkillText | UnsetType, describe(_DESCRIPTION_TEXT, _DESCRIPTION)] = UNSET
    body: Annotated[SkillText | UnsetType, describe(_BODY_TEXT, _BODY)] = UNSET


class ListedSkill(Struct, frozen=True, kw_only=True):
    """A personal skill without its instructions."""

    id: Annotated[UUID, describe("The skill's id.", _ID)]
    name: Annotated[str, describe("Its name.", _NAME)]
    description: Annotated[str, describe("What it is for.", _DESCRIPTION)]
    created_at: Annotated[datetime, describe("When it was created.", CREATED_AT)]
    updated_at: Annotated[datetime, describe("When it was last changed.", UPDATED_AT)]


class SkillReply(ListedSkill, frozen=True, kw_only=True):
    """A personal skill."""

    body: Annotated[str, describe("The instructions.", _BODY)]


class SkillPage(ListPage[ListedSkill], frozen=True, kw_only=True):
    """A page of personal skills, by name."""


# In JSON a character can have six bytes.
_REQUEST_BYTES: Final = 6 * (MAX_BODY_BYTES + MAX_DESCRIPTION_BYTES) + 4096
_CREATE: Final = BodySpec(NewSkillBody, _REQUEST_BYTES)
_PATCH: Final = BodySpec(PatchSkillBody, _REQUEST_BYTES)


class SkillRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps

    def routes(self) -> tuple[ApiRoute, ...]:
        one = "/skills/{skill_id}"
        return (
            ApiRoute(
                endpoint="POST /skills",
                permission="account.write",
                summary="Create a personal skill: instructions for certain tasks",
                description="Models find it in all your chats, by its description.",
                handle=self.create_skill,
                body_spec=_CREATE,
                replies={201: SkillReply},
                errors=("too_many_skills", "skill_exists"),
            ),
            ApiRoute(
                endpoint="GET /skills",
                permission="account.read",
                summary="List your personal skills, by name",
                handle=self.list_skills,
                query=ListQuery,
                replies={200: SkillPage},
            ),
            ApiRoute(
                endpoint=f"GET {one}",
                permission="account.read",
                summary="Get a personal skill with its instructions",
                handle=self.get_skill,
                replies={200: SkillReply},
            ),
            ApiRoute(
                endpoint=f"PATCH {one}",
                permission="account.write",
                summary="Change a personal skill",
                handle=self.change_skill,
                body_spec=_PATCH,
                replies={200: SkillReply},
                errors=("skill_exists",),
            ),
            ApiRoute(
                endpoint=f"DELETE {one}",
                permission="account.write",
                summary="Delete a personal skill",
                handle=self.delete_skill,
                replies={204: None},
            ),
        )

    async def create_skill(self, request: ApiRequest) -> ApiReply:
        deps, actor, body = self._deps, request.caller.actor, await request.body(_CREATE)
        new = _check(SkillPatch(name=body.name, description=body.description, body=body.body))
        async with deps.pool.transaction() as session:
            made = await skills.insert(session, actor, deps.env.new_id(), new)
        headers = {"location": f"/api/v1/skills/{made.id}"}
        return reply(_skill_reply(made), 201, headers)

    async def list_skills(self, request: ApiRequest) -> ApiReply:
        actor = request.caller.actor
        paging = Paging(request, request.query(ListQuery), ItemPosition)
        found = await self._deps.read(skills.list_of, actor, actor.user_id)
        shown, cursor = cut_whole(paging, found, lambda skill: skill.id)
        return page_reply(SkillPage, map(_listed, shown), cursor)

    async def get_skill(self, request: ApiRequest) -> ApiReply:
        actor = request.caller.actor
        found = await self._deps.read(skills.get, actor, request.skill_id)
        return reply(_skill_reply(found))

    async def change_skill(self, request: ApiRequest) -> ApiReply:
        deps, actor, body = self._deps, request.caller.actor, await request.body(_PATCH)
        patch = SkillPatch(
            name=_given(body.name),
            description=_given(body.description),
            body=_given(body.body),
        )
        async with deps.pool.transaction() as session:
            saved = await skills.update(session, actor, request.skill_id, _check(patch))
        return reply(_skill_reply(saved))

    async def delete_skill(self, request: ApiRequest) -> ApiReply:
        async with self._deps.pool.transaction() as session:
            await skills.delete(session, request.caller.actor, request.skill_id)
        return NO_CONTENT


def _given(value: str | UnsetType) -> str | None:
    return None if isinstance(value, UnsetType) else value


def _check(given: SkillPatch) -> SkillPatch:
    """Raises InvalidInput for a text that is too long."""
    limits = (
        ("description", given.description, MAX_DESCRIPTION_BYTES),
        ("body", given.body, MAX_BODY_BYTES),
    )
    for field, text, limit in limits:
        size = len((text or "").encode("utf-8", "replace"))
        if size > limit:
            raise InvalidInput(field, f"has {size} bytes; at most {limit} are allowed")
    return given


def _listed(skill: PersonalSkill) -> ListedSkill:
    return from_rows(ListedSkill, skill)


def _skill_reply(skill: PersonalSkill) -> SkillReply:
    return from_rows(SkillReply, skill)

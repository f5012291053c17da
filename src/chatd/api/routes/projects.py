"""Routes of projects: what they have, who belongs to them, and their files."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, ClassVar, Final
from uuid import UUID

from msgspec import UNSET, Meta, Struct, UnsetType

from chatd.api.deps import ApiDeps
from chatd.api.pages import ItemPosition, Paging, cut_whole, page_reply
from chatd.api.request import NO_CONTENT, ApiReply, ApiRequest, BodySpec, reply
from chatd.api.route import ApiRoute
from chatd.api.routes.chat.shares import DirectoryUser
from chatd.api.schemas.messages import from_rows
from chatd.domain.description import (
    CREATED_AT,
    FILE_ID,
    MODEL_ID,
    PROJECT_ID,
    TEMPLATE_ID,
    UPDATED_AT,
    USER_ID,
    describe,
)
from chatd.domain.errors import InvalidInput
from chatd.domain.ids import FileId, ModelConfigId, ProjectId, UserId
from chatd.domain.list_page import ListPage, ListQuery
from chatd.domain.projects import (
    MAX_COUNTED_CHATS,
    MAX_INSTRUCTIONS_BYTES,
    MAX_NAME_CHARS,
    MAX_PROJECT_FILES,
    MemberRole,
    Project,
    ProjectFile,
    ProjectRole,
    clean_instructions,
    clean_name,
    name_of_file,
)
from chatd.store import files, projects
from chatd.store.projects import ProjectPatch

_NAME: Final = "Billing"
_INSTRUCTIONS: Final = "The repository is billing-api. Amounts are in cents."
_NAME_TEXT: Final = f"Its name, of at most {MAX_NAME_CHARS} characters."
_INSTRUCTIONS_TEXT: Final = "What the models of its chats are told, as Markdown. At most 32 KiB."
_MODEL_TEXT: Final = "The model of new chats that name none; null: the default of the server."
_TEMPLATE_TEXT: Final = (
    "The template that models of its chats make workspaces from, unless the user names another;"
    " null: they choose."
)
_VERSION_TEXT: Final = "Refuse the change if the project has another version."

Name = Annotated[str, Meta(min_length=1, max_length=4 * MAX_NAME_CHARS)]
InstructionText = Annotated[str, Meta(max_length=4 * MAX_INSTRUCTIONS_BYTES)]


class NewProjectBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A project to create. You are its owner."""

    openapi_example: ClassVar[Mapping[str, object]] = {
        "name": _NAME,
        "instructions": _INSTRUCTIONS,
    }

    name: Annotated[Name, describe(_NAME_TEXT, _NAME)]
    instructions: Annotated[InstructionText, describe(_INSTRUCTIONS_TEXT, _INSTRUCTIONS)] = ""
    model_config_id: Annotated[UUID | None, describe(_MODEL_TEXT, MODEL_ID)] = None
    template_id: Annotated[UUID | None, describe(_TEMPLATE_TEXT, TEMPLATE_ID)] = None


class PatchProjectBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to change of a project. Fields that are not named stay."""

    openapi_example: ClassVar[Mapping[str, object]] = {"instructions": _INSTRUCTIONS}

    name: Annotated[Name | UnsetType, describe(_NAME_TEXT, _NAME)] = UNSET
    instructions: Annotated[
        InstructionText | UnsetType, describe(_INSTRUCTIONS_TEXT, _INSTRUCTIONS)
    ] = UNSET
    model_config_id: Annotated[UUID | UnsetType | None, describe(_MODEL_TEXT, MODEL_ID)] = UNSET
    template_id: Annotated[UUID | UnsetType | None, describe(_TEMPLATE_TEXT, TEMPLATE_ID)] = UNSET
    version: Annotated[
        Annotated[int, Meta(ge=1, le=2**63 - 1)] | UnsetType, describe(_VERSION_TEXT, 3)
    ] = UNSET


class ProjectReply(Struct, frozen=True, kw_only=True):
    """A project to which you belong."""

    id: Annotated[ProjectId, describe("The project's id.", PROJECT_ID)]
    name: Annotated[str, describe("Its name.", _NAME)]
    instructions: Annotated[str, describe(_INSTRUCTIONS_TEXT, _INSTRUCTIONS)]
    model_config_id: Annotated[ModelConfigId | None, describe(_MODEL_TEXT, MODEL_ID)]
    template_id: Annotated[UUID | None, describe(_TEMPLATE_TEXT, TEMPLATE_ID)]
    role: Annotated[
        ProjectRole,
        describe(
            "What you may do. A `reader` reads its chats; a `writer` also puts own chats into it"
            " and changes it; the `owner` also decides who belongs to it.",
            "owner",
        ),
    ]
    owner_id: Annotated[UserId, describe("Its owner.", USER_ID)]
    owner_username: Annotated[str, describe("The name of its owner.", "ada")]
    member_count: Annotated[int, describe("How many users belong to it, with its owner.", 3)]
    file_count: Annotated[int, describe("How many files it has.", 2)]
    chat_count: Annotated[
        int, describe(f"How many chats it has, archived ones too; at most {MAX_COUNTED_CHATS}.", 12)
    ]
    version: Annotated[int, describe("Counts its changes.", 3)]
    created_at: Annotated[datetime, describe("When it was created.", CREATED_AT)]
    updated_at: Annotated[datetime, describe("When it was last changed.", UPDATED_AT)]


class ProjectPage(ListPage[ProjectReply], frozen=True, kw_only=True):
    """A page of projects, by name."""


class MemberReply(DirectoryUser, frozen=True, kw_only=True):
    """A user who belongs to a project."""

    role: Annotated[ProjectRole, describe("What the user may do.", "reader")]


class MemberPage(ListPage[MemberReply], frozen=True, kw_only=True):
    """A page of the users who belong to a project, its owner first."""


class MemberBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The role that the user has from now on."""

    openapi_example: ClassVar[Mapping[str, object]] = {"role": "reader"}

    role: Annotated[MemberRole, describe("What the user may do.", "reader")]


class ProjectFileBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of yours, that you have uploaded."""

    openapi_example: ClassVar[Mapping[str, object]] = {"file_id": FILE_ID, "name": "style.md"}

    file_id: Annotated[UUID, describe("The id of the file.", FILE_ID)]
    name: Annotated[
        Annotated[str, Meta(max_length=1000)] | None,
        describe("The name that it has in the project; null: its own name.", "style.md"),
    ] = None


class ProjectFileReply(Struct, frozen=True, kw_only=True):
    """A file of a project."""

    id: Annotated[FileId, describe("The id of the file.", FILE_ID)]
    name: Annotated[str, describe("The name that it has in the project.", "style.md")]
    owner_id: Annotated[UserId, describe("The user who added it.", USER_ID)]
    media_type: Annotated[str, describe("The media type of the content.", "text/markdown")]
    size_bytes: Annotated[int, describe("The size of the file in bytes.", 4_213)]
    created_at: Annotated[datetime, describe("When it was uploaded.", CREATED_AT)]


class ProjectFilePage(ListPage[ProjectFileReply], frozen=True, kw_only=True):
    """A page of the files of a project, by name."""


# In JSON a character can have six bytes.
_REQUEST_BYTES: Final = 6 * MAX_INSTRUCTIONS_BYTES + 8192
_CREATE: Final = BodySpec(NewProjectBody, _REQUEST_BYTES)
_PATCH: Final = BodySpec(PatchProjectBody, _REQUEST_BYTES)
_MEMBER: Final = BodySpec(MemberBody)
_FILE: Final = BodySpec(ProjectFileBody)


class ProjectRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps

    def routes(self) -> tuple[ApiRoute, ...]:
        return (*self._own_routes(), *self._member_routes(), *self._file_routes())

    def _own_routes(self) -> tuple[ApiRoute, ...]:
        one = "/projects/{project_id}"
        return (
            ApiRoute(
                endpoint="POST /projects",
                permission="chats.write",
                summary="Create a project: chats with instructions and files in common",
                handle=self.create_project,
                body_spec=_CREATE,
                replies={201: ProjectReply},
                errors=("too_many_projects",),
            ),
            ApiRoute(
                endpoint="GET /projects",
                permission="chats.read",
                summary="List the projects to which you belong, by name",
                handle=self.list_projects,
                query=ListQuery,
                replies={200: ProjectPage},
            ),
            ApiRoute(
                endpoint=f"GET {one}",
                permission="chats.read",
                summary="Get a project",
                handle=self.get_project,
                replies={200: ProjectReply},
            ),
            ApiRoute(
                endpoint=f"PATCH {one}",
                permission="chats.write",
                summary="Change a project",
                description="The models of its chats are told at their next call.",
                handle=self.change_project,
                body_spec=_PATCH,
                replies={200: ProjectReply},
                errors=("version_conflict",),
            ),
            ApiRoute(
                endpoint=f"DELETE {one}",
                permission="chats.write",
                summary="Delete a project; its chats stay with their owners",
                handle=self.delete_project,
                replies={204: None},
            ),
        )

    def _member_routes(self) -> tuple[ApiRoute, ...]:
        members = "/projects/{project_id}/members"
        return (
            ApiRoute(
                endpoint=f"GET {members}",
                permission="chats.read",
                summary="List who belongs to a project",
                handle=self.list_project_members,
                query=ListQuery,
                replies={200: MemberPage},
            ),
            ApiRoute(
                endpoint=f"PUT {members}/{{user_id}}",
                permission="chats.write",
                summary="Let a user belong to a project, or change the user's role",
                description=(
                    "Members read all chats of the project, as readers of a share do. Only the"
                    " owner decides."
                ),
                handle=self.set_project_member,
                body_spec=_MEMBER,
                replies={200: MemberReply},
                errors=(
                    "sharing_disabled",
                    "too_many_members",
                    "too_many_projects",
                    "project_owner",
                ),
            ),
            ApiRoute(
                endpoint=f"DELETE {members}/{{user_id}}",
                permission="chats.write",
                summary="Remove a member of a project, or leave it",
                description=(
                    "The chats and the files of the member leave the project. Streams of chats that"
                    " can no longer be read end within a second."
                ),
                handle=self.remove_project_member,
                replies={204: None},
                errors=("project_owner",),
            ),
        )

    def _file_routes(self) -> tuple[ApiRoute, ...]:
        of_project = "/projects/{project_id}/files"
        return (
            ApiRoute(
                endpoint=f"GET {of_project}",
                permission="chats.read",
                summary="List the files of a project",
                handle=self.list_project_files,
                query=ListQuery,
                replies={200: ProjectFilePage},
            ),
            ApiRoute(
                endpoint=f"POST {of_project}",
                permission="chats.write",
                summary="Add a file of yours to a project",
                description=(
                    f"Upload it first. A project has at most {MAX_PROJECT_FILES} files. Models are"
                    " told the text of short ones and read the other texts when they need them."
                ),
                handle=self.add_project_file,
                body_spec=_FILE,
                replies={201: ProjectFileReply},
                errors=("too_many_project_files", "file_name_taken"),
            ),
            ApiRoute(
                endpoint=f"DELETE {of_project}/{{file_id}}",
                permission="chats.write",
                summary="Remove a file from a project; the file stays",
                handle=self.remove_project_file,
                replies={204: None},
            ),
        )

    async def create_project(self, request: ApiRequest) -> ApiReply:
        deps, caller, body = self._deps, request.caller, await request.body(_CREATE)
        patch = ProjectPatch(
            name=clean_name(body.name),
            instructions=clean_instructions(body.instructions),
            model_config_id=await self._check_model(body.model_config_id),
            template_id=body.template_id,
        )
        project_id = ProjectId(deps.env.new_id())
        async with deps.pool.transaction() as session:
            made = await projects.create(
                session, caller.actor, project_id, patch, ip=self._ip(request)
            )
        return reply(_shown(made), 201, {"location": f"/api/v1/projects/{made.id}"})

    async def list_projects(self, request: ApiRequest) -> ApiReply:
        paging = Paging(request, request.query(ListQuery), ItemPosition)
        found = await self._deps.read(projects.list_own, request.caller.actor)
        shown, cursor = cut_whole(paging, found, lambda project: project.id)
        return page_reply(ProjectPage, map(_shown, shown), cursor)

    async def get_project(self, request: ApiRequest) -> ApiReply:
        found = await self._deps.read(projects.get, request.caller.actor, request.project_id)
        return reply(_shown(found))

    async def change_project(self, request: ApiRequest) -> ApiReply:
        deps, caller, body = self._deps, request.caller, await request.body(_PATCH)
        model = body.model_config_id
        patch = ProjectPatch(
            name=UNSET if body.name is UNSET else clean_name(body.name),
            instructions=UNSET
            if body.instructions is UNSET
            else clean_instructions(body.instructions),
            model_config_id=UNSET if model is UNSET else await self._check_model(model),
            template_id=body.template_id,
            version=body.version,
        )
        async with deps.pool.transaction() as session:
            saved = await projects.update(
                session, caller.actor, request.project_id, patch, ip=self._ip(request)
            )
        return reply(_shown(saved))

    async def delete_project(self, request: ApiRequest) -> ApiReply:
        caller = request.caller
        async with self._deps.pool.transaction() as session:
            await projects.delete(session, caller.actor, request.project_id, ip=self._ip(request))
        return NO_CONTENT

    async def list_project_members(self, request: ApiRequest) -> ApiReply:
        actor = request.caller.actor
        paging = Paging(request, request.query(ListQuery), ItemPosition)
        found = await self._deps.read(projects.list_members, actor, request.project_id)
        shown, cursor = cut_whole(paging, found, lambda member: member.id)
        return page_reply(MemberPage, (from_rows(MemberReply, one) for one in shown), cursor)

    async def set_project_member(self, request: ApiRequest) -> ApiReply:
        caller, body = request.caller, await request.body(_MEMBER)
        user_id = request.user_id
        async with self._deps.pool.transaction() as session:
            made = await projects.set_member(
                session, caller.actor, request.project_id, user_id, body.role, ip=self._ip(request)
            )
        return reply(from_rows(MemberReply, made))

    async def remove_project_member(self, request: ApiRequest) -> ApiReply:
        caller, user_id = request.caller, request.user_id
        async with self._deps.pool.transaction() as session:
            await projects.remove_member(
                session, caller.actor, request.project_id, user_id, ip=self._ip(request)
            )
        return NO_CONTENT

    async def list_project_files(self, request: ApiRequest) -> ApiReply:
        actor = request.caller.actor
        paging = Paging(request, request.query(ListQuery), ItemPosition)
        found = await self._deps.read(projects.list_files, actor, request.project_id)
        shown, cursor = cut_whole(paging, found, lambda one: one.file.id)
        return page_reply(ProjectFilePage, map(_shown_file, shown), cursor)

    async def add_project_file(self, request: ApiRequest) -> ApiReply:
        deps, caller, body = self._deps, request.caller, await request.body(_FILE)
        file_id = FileId(body.file_id)
        known = await deps.read(files.list_attachable, [file_id], caller.actor)
        stored = known.get(file_id)
        name = name_of_file(body.name, None if stored is None else stored.name or str(file_id))
        async with deps.pool.transaction() as session:
            added = await projects.add_file(
                session, caller.actor, request.project_id, file_id, name, ip=self._ip(request)
            )
        return reply(_shown_file(added), 201)

    async def remove_project_file(self, request: ApiRequest) -> ApiReply:
        caller, file_id = request.caller, request.file_id
        async with self._deps.pool.transaction() as session:
            await projects.remove_file(
                session, caller.actor, request.project_id, file_id, ip=self._ip(request)
            )
        return NO_CONTENT

    def _ip(self, request: ApiRequest) -> str | None:
        return self._deps.accounts.site.address(request.scope)

    async def _check_model(self, model_id: UUID | None) -> ModelConfigId | None:
        """Raises InvalidInput."""
        if model_id is None:
            return None
        known = await self._deps.models.get(ModelConfigId(model_id))
        if known is None or not known.enabled:
            raise InvalidInput("model_config_id", "there is no such model that can be used")
        return known.config.id


def _shown(project: Project) -> ProjectReply:
    return from_rows(ProjectReply, project)


def _shown_file(one: ProjectFile) -> ProjectFileReply:
    file = one.file
    return ProjectFileReply(
        id=file.id,
        name=one.name,
        owner_id=file.owner_id,
        media_type=file.media_type,
        size_bytes=file.size_bytes,
        created_at=file.created_at,
    )

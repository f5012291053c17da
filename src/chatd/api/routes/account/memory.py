"""Routes of the memory: notes that the caller keeps, and those that models have proposed."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, ClassVar, Final, Literal
from uuid import UUID

from msgspec import UNSET, Meta, Struct, UnsetType

from chatd.api.deps import ApiDeps
from chatd.api.pages import ItemPosition, Paging, cut_whole, page_reply
from chatd.api.request import NO_CONTENT, ApiReply, ApiRequest, BodySpec, reply
from chatd.api.route import ApiRoute
from chatd.api.schemas.messages import from_rows
from chatd.domain.description import (
    CHAT_ID,
    CREATED_AT,
    NOTE_ID,
    PROJECT_ID,
    UPDATED_AT,
    describe,
)
from chatd.domain.ids import ProjectId
from chatd.domain.list_page import ListPage, ListQuery
from chatd.domain.memory import MAX_NOTE_CHARS, MAX_NOTES, MemoryNote, NoteState, clean_note
from chatd.store import memory
from chatd.store.memory import NotePatch

# Bodies and replies about notes. Docstrings here are part of the OpenAPI document.

_TEXT: Final = "I use British English."
_TEXT_TEXT: Final = f"What models are told: plain text of at most {MAX_NOTE_CHARS} characters."
_ENABLED_TEXT: Final = "False: models are not told it."
_PROJECT_TEXT: Final = (
    "The project whose chats are told it; null: all your chats are. Members who may write see and"
    " change the notes of a project."
)
_PLACE_TEXT: Final = "Its place among the notes, from 1; a place behind the last one is the last."

# Surplus characters may be blank space or invisible, and are removed before they are counted.
NoteText = Annotated[str, Meta(min_length=1, max_length=8 * MAX_NOTE_CHARS)]
Place = Annotated[int, Meta(ge=1, le=10_000)]


class NewNoteBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A note to keep."""

    openapi_example: ClassVar[Mapping[str, object]] = {"text": _TEXT}

    text: Annotated[NoteText, describe(_TEXT_TEXT, _TEXT)]
    project_id: Annotated[UUID | None, describe(_PROJECT_TEXT, PROJECT_ID)] = None
    enabled: Annotated[bool, describe(_ENABLED_TEXT, True)] = True  # noqa: FBT003


class PatchNoteBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to change of a note. Fields that are not named stay."""

    openapi_example: ClassVar[Mapping[str, object]] = {"enabled": False}

    text: Annotated[NoteText | UnsetType, describe(_TEXT_TEXT, _TEXT)] = UNSET
    enabled: Annotated[bool | UnsetType, describe(_ENABLED_TEXT, True)] = UNSET  # noqa: FBT003
    place: Annotated[Place | UnsetType, describe(_PLACE_TEXT, 1)] = UNSET


class AcceptNoteBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The note that is kept."""

    openapi_example: ClassVar[Mapping[str, object]] = {"text": _TEXT}

    text: Annotated[
        NoteText | UnsetType, describe("The text to keep; by default the proposed one.", _TEXT)
    ] = UNSET
    project_id: Annotated[UUID | None, describe(_PROJECT_TEXT, PROJECT_ID)] = None


class NoteReply(Struct, frozen=True, kw_only=True):
    """A note, or a proposal of a model."""

    id: Annotated[UUID, describe("The note's id.", NOTE_ID)]
    state: Annotated[
        NoteState,
        describe(
            "Only a note that is `kept` is told to models. One that is `proposed` waits for your"
            " decision; one that is `dismissed` is soon forgotten.",
            "kept",
        ),
    ]
    text: Annotated[str, describe(_TEXT_TEXT, _TEXT)]
    enabled: Annotated[bool, describe(_ENABLED_TEXT, True)]  # noqa: FBT003
    project_id: Annotated[ProjectId | None, describe(_PROJECT_TEXT, PROJECT_ID)]
    chat_id: Annotated[UUID | None, describe("The chat whose model proposed it.", CHAT_ID)]
    created_at: Annotated[datetime, describe("When it was written or proposed.", CREATED_AT)]
    updated_at: Annotated[datetime, describe("When it was last changed.", UPDATED_AT)]


class NotePage(ListPage[NoteReply], frozen=True, kw_only=True):
    """A page of notes, in their order."""


class NotesQuery(ListQuery, frozen=True, kw_only=True):
    """Which notes."""

    state: Annotated[
        Literal["kept", "proposed"],
        describe("Notes that are kept, or your proposals that wait for a decision.", "kept"),
    ] = "kept"
    project_id: Annotated[
        UUID | None, describe("Of this project; without it your own.", PROJECT_ID)
    ] = None


_CREATE: Final = BodySpec(NewNoteBody)
_PATCH: Final = BodySpec(PatchNoteBody)
_ACCEPT: Final = BodySpec(AcceptNoteBody)


class MemoryRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps

    def routes(self) -> tuple[ApiRoute, ...]:
        one = "/memory/notes/{note_id}"
        return (
            ApiRoute(
                endpoint="POST /memory/notes",
                permission="account.write",
                summary="Keep a note that models of your chats, or of a project, are told",
                handle=self.create_note,
                body_spec=_CREATE,
                replies={201: NoteReply},
                errors=("not_found", "too_many_notes", "memory_off"),
            ),
            ApiRoute(
                endpoint="GET /memory/notes",
                permission="account.read",
                summary="List notes in their order, or the proposals that wait for you",
                description=f"A user and a project have at most {MAX_NOTES} notes each.",
                handle=self.list_notes,
                query=NotesQuery,
                replies={200: NotePage},
                errors=("not_found",),
            ),
            ApiRoute(
                endpoint=f"GET {one}",
                permission="account.read",
                summary="Get a note or a proposal",
                handle=self.get_note,
                replies={200: NoteReply},
            ),
            ApiRoute(
                endpoint=f"PATCH {one}",
                permission="account.write",
                summary="Change a note, switch it off, or move it",
                handle=self.change_note,
                body_spec=_PATCH,
                replies={200: NoteReply},
            ),
            ApiRoute(
                endpoint=f"DELETE {one}",
                permission="account.write",
                summary="Delete a note or a proposal",
                handle=self.delete_note,
                replies={204: None},
            ),
            ApiRoute(
                endpoint=f"POST {one}/accept",
                permission="account.write",
                summary="Keep a note that a model has proposed; again: changes nothing",
                handle=self.accept_note,
                body_spec=_ACCEPT,
                replies={200: NoteReply},
                errors=("too_many_notes", "memory_off"),
            ),
            ApiRoute(
                endpoint=f"POST {one}/dismiss",
                permission="account.write",
                summary="Do not keep a note that a model has proposed",
                handle=self.dismiss_note,
                replies={200: NoteReply},
                errors=("note_kept",),
            ),
        )

    async def create_note(self, request: ApiRequest) -> ApiReply:
        deps, body = self._deps, await request.body(_CREATE)
        text, note_id = clean_note(body.text), deps.env.new_id()
        async with deps.pool.transaction() as session:
            made = await memory.insert(
                session,
                request.caller.actor,
                note_id,
                text=text,
                project_id=_project(body.project_id),
                enabled=body.enabled,
                ip=self._ip(request),
            )
        headers = {"location": f"/api/v1/memory/notes/{made.id}"}
        return reply(_note_reply(made), 201, headers)

    async def list_notes(self, request: ApiRequest) -> ApiReply:
        actor, query = request.caller.actor, request.query(NotesQuery)
        paging = Paging(request, query, ItemPosition)
        if query.state == "proposed":
            found = await self._deps.read(memory.list_proposed, actor)
        else:
            project_id = _project(query.project_id)
            found = await self._deps.read(memory.list_kept, actor, project_id)
        shown, cursor = cut_whole(paging, found, lambda note: note.id)
        return page_reply(NotePage, map(_note_reply, shown), cursor)

    async def get_note(self, request: ApiRequest) -> ApiReply:
        found = await self._deps.read(memory.get, request.caller.actor, request.note_id)
        return reply(_note_reply(found))

    async def change_note(self, request: ApiRequest) -> ApiReply:
        deps, body = self._deps, await request.body(_PATCH)
        patch = NotePatch(
            text=None if body.text is UNSET else clean_note(body.text),
            enabled=None if body.enabled is UNSET else body.enabled,
            place=None if body.place is UNSET else body.place,
        )
        async with deps.pool.transaction() as session:
            saved = await memory.update(
                session, request.caller.actor, request.note_id, patch, ip=self._ip(request)
            )
        return reply(_note_reply(saved))

    async def delete_note(self, request: ApiRequest) -> ApiReply:
        async with self._deps.pool.transaction() as session:
            await memory.delete(
                session, request.caller.actor, request.note_id, ip=self._ip(request)
            )
        return NO_CONTENT

    async def accept_note(self, request: ApiRequest) -> ApiReply:
        deps, actor = self._deps, request.caller.actor
        body = await request.optional_body(_ACCEPT, AcceptNoteBody())
        async with deps.pool.transaction() as session:
            proposed = await memory.get(session, actor, request.note_id, "account.write")
            text = clean_note(proposed.text if body.text is UNSET else body.text)
            kept = await memory.accept(
                session,
                actor,
                request.note_id,
                text=text,
                project_id=_project(body.project_id),
                ip=self._ip(request),
            )
        return reply(_note_reply(kept))

    async def dismiss_note(self, request: ApiRequest) -> ApiReply:
        async with self._deps.pool.transaction() as session:
            made = await memory.dismiss(session, request.caller.actor, request.note_id)
        return reply(_note_reply(made))

    def _ip(self, request: ApiRequest) -> str | None:
        return self._deps.accounts.site.address(request.scope)


def _project(value: UUID | None) -> ProjectId | None:
    return None if value is None else ProjectId(value)


def _note_reply(note: MemoryNote) -> NoteReply:
    return from_rows(NoteReply, note)

"""Bodies and replies about personal skills. Docstrings here are part of the OpenAPI document."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, ClassVar
from uuid import UUID

from msgspec import UNSET, Meta, Struct, UnsetType

from chatd.domain.description import CREATED_AT, UPDATED_AT, describe
from chatd.domain.list_page import ListPage

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

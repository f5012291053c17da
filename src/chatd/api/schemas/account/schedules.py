"""Bodies and replies about schedules. Docstrings here are part of the OpenAPI document."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated
from uuid import UUID

from msgspec import UNSET, Meta, Struct, UnsetType

from chatd.api.schemas.messages import ModelSelection
from chatd.domain.description import (
    CHAT_ID,
    CREATED_AT,
    MODEL_ID,
    UPDATED_AT,
    WORKSPACE_ID,
    describe,
)
from chatd.domain.list_page import ListPage
from chatd.domain.schedules import MAX_CRON_CHARS

_ID = "8e2f1d7a-0c3b-4b5d-9e6f-7a8b9c0d1e2f"
_NAME = "Nightly dependency check"
_PROMPT = "Update the dependencies, run the tests, and report what changed."

Name = Annotated[str, Meta(min_length=1, max_length=200)]
CronText = Annotated[str, Meta(min_length=1, max_length=MAX_CRON_CHARS)]
Zone = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_+\-/]+$")]
Prompt = Annotated[str, Meta(min_length=1, max_length=100_000)]

_CRON_TEXT = (
    "When it runs: minute, hour, day of month, month, day of week, as in cron; or `@hourly`,"
    " `@daily`, `@weekly`, `@monthly`, `@yearly`."
)


class NewScheduleBody(ModelSelection, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A schedule to create: each run starts a chat with its prompt."""

    name: Annotated[Name, describe("Its name, and the title of its chats.", _NAME)]
    cron: Annotated[CronText, describe(_CRON_TEXT, "30 2 * * mon-fri")]
    timezone: Annotated[Zone, describe("The time zone of `cron`.", "Europe/Berlin")] = "UTC"
    prompt: Annotated[Prompt, describe("The first message of each chat.", _PROMPT)]
    labels: Annotated[Mapping[str, str], describe("Labels of each chat.", {"team": "infra"})] = {}
    workspace_id: Annotated[UUID | None, describe("The workspace of each chat.", WORKSPACE_ID)] = (
        None
    )
    enabled: Annotated[
        bool, Meta(description="False: it does not run by itself.", examples=[True])
    ] = True


class SchedulePatch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to change of a schedule. Fields that are not named stay."""

    name: Annotated[Name | UnsetType, describe("Its name.", _NAME)] = UNSET
    cron: Annotated[CronText | UnsetType, describe(_CRON_TEXT, "@daily")] = UNSET
    timezone: Annotated[Zone | UnsetType, describe("The time zone of `cron`.", "UTC")] = UNSET
    prompt: Annotated[Prompt | UnsetType, describe("The first message.", _PROMPT)] = UNSET
    enabled: Annotated[
        bool | UnsetType, Meta(description="False: it does not run by itself.", examples=[True])
    ] = UNSET


class ScheduleReply(Struct, frozen=True, kw_only=True):
    """A schedule of yours."""

    id: Annotated[UUID, describe("The schedule's id.", _ID)]
    name: Annotated[str, describe("Its name, and the title of its chats.", _NAME)]
    cron: Annotated[str, describe(_CRON_TEXT, "30 2 * * mon-fri")]
    timezone: Annotated[str, describe("The time zone of `cron`.", "Europe/Berlin")]
    prompt: Annotated[str, describe("The first message of each chat.", _PROMPT)]
    model_config_id: Annotated[UUID | None, describe("The model of each chat.", MODEL_ID)]
    reasoning_effort: Annotated[str | None, describe("How much the model thinks.", "medium")]
    labels: Annotated[dict[str, str], describe("Labels of each chat.", {"team": "infra"})]
    workspace_id: Annotated[UUID | None, describe("The workspace of each chat.", WORKSPACE_ID)]
    enabled: Annotated[bool, Meta(description="Whether it runs by itself.", examples=[True])]
    next_run_at: Annotated[
        datetime | None, describe("When it runs next. Null: it does not.", UPDATED_AT)
    ]
    last_run_at: Annotated[datetime | None, describe("The due time of the last run.", CREATED_AT)]
    last_chat_id: Annotated[UUID | None, describe("The chat of the last run.", CHAT_ID)]
    last_error: Annotated[
        str | None, describe("Why the last run started no chat, if it did not.", None)
    ]
    created_at: Annotated[datetime, describe("When it was created.", CREATED_AT)]
    updated_at: Annotated[datetime, describe("When it was last changed.", UPDATED_AT)]


class SchedulePage(ListPage[ScheduleReply], frozen=True, kw_only=True):
    """Your schedules."""

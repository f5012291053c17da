"""Ratings of answers: their values, and the table of all of them for administrators. Pure."""

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Final, Literal
from uuid import UUID

from msgspec import Meta, Struct

from chatd.domain.description import CHAT_ID, MODEL_ID, UPDATED_AT, USER_ID, describe
from chatd.domain.ids import ChatId, MessageId, ModelConfigId, UserId
from chatd.domain.text import csv_rows

MAX_COMMENT_CHARS: Final = 2000

RatingValue = Literal["up", "down"]
Comment = Annotated[
    str,
    Meta(max_length=MAX_COMMENT_CHARS),
    describe("What was good or bad; may be empty.", "It forgot the tests."),
]


class GivenRating(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A thumb for an answer."""

    value: Annotated[RatingValue, describe("The thumb.", "up")]
    comment: Comment = ""


class Rating(Struct, frozen=True, kw_only=True):
    """A thumb for an answer of a chat, by the owner of the chat."""

    message_id: Annotated[MessageId, describe("The answer.", 7)]
    value: Annotated[RatingValue, describe("The thumb.", "up")]
    comment: Annotated[str, describe("What was good or bad.", "It forgot the tests.")]
    updated_at: Annotated[datetime, describe("When it was last changed.", UPDATED_AT)]


class RatingRecord(Rating, frozen=True, kw_only=True):
    """A rating with what was rated."""

    chat_id: Annotated[ChatId, describe("The chat.", CHAT_ID)]
    user_id: Annotated[UserId, describe("The user who gave it.", USER_ID)]
    username: Annotated[str, describe("The name of that user.", "ada")]
    model_config_id: Annotated[ModelConfigId | None, describe("The model that answered.", MODEL_ID)]
    model: Annotated[str, describe("The name of that model; empty if it is gone.", "sonnet")]
    template: Annotated[
        str, describe("The template of the chat's workspace; empty without one.", "scratch")
    ]


COLUMNS: Final = (
    *("time", "value", "comment", "user", "model", "template", "chat_id", "message_id"),
)


def csv_header() -> bytes:
    """With a byte order mark, by which spreadsheets know the encoding."""
    return b"\xef\xbb\xbf" + csv_rows([COLUMNS])


def csv_records(records: Iterable[RatingRecord]) -> bytes:
    return csv_rows(
        (
            one.updated_at.isoformat(),
            one.value,
            one.comment,
            one.username,
            one.model,
            one.template,
            str(one.chat_id),
            str(one.message_id),
        )
        for one in records
    )


def position_of(record: RatingRecord) -> tuple[datetime, UUID, int]:
    return record.updated_at, record.chat_id, record.message_id

"""Convert between database rows and domain values."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, LiteralString, TypeVar, cast
from uuid import UUID

import msgspec
from msgspec import UNSET, Raw, Struct

from chatd.domain.chat.change import AppendedMessage, Change
from chatd.domain.chat.messages import (
    Message,
    PendingCall,
    QueuedMessage,
    Role,
    TokenUsage,
    Visibility,
)
from chatd.domain.chat.parts import decode_parts
from chatd.domain.chat.row import RECENT_CHANGES_KEPT, Chat, ChatError, RetryState
from chatd.domain.ids import ChangeId
from chatd.store.conn import Row

_ENCODER = msgspec.json.Encoder()
_ERROR = msgspec.json.Decoder(ChatError)
_RETRY = msgspec.json.Decoder(RetryState)
_CALLS = msgspec.json.Decoder(tuple[PendingCall, ...])
_LABELS = msgspec.json.Decoder(dict[str, str])

T = TypeVar("T")


def strip_unstorable(text: str) -> str:
    """Replace what a text column cannot store by U+FFFD: NUL and lone surrogates."""
    return _replace_lone_surrogates(text.replace("\0", "\ufffd"))


def _replace_lone_surrogates(text: str) -> str:
    # Through UTF-16, where a surrogate pair becomes one character.
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def replace_surrogates_deep(value: T) -> T:
    """Replace lone surrogates by U+FFFD in all strings inside `value`."""
    return cast("T", _replace_surrogates(value))


def _replace_surrogates(value: object) -> object:
    match value:
        case str():
            return _replace_lone_surrogates(value)
        case Struct():
            fields = {
                name: _replace_surrogates(getattr(value, name)) for name in value.__struct_fields__
            }
            return msgspec.structs.replace(value, **fields)
        case Mapping():
            pairs = cast("Mapping[object, object]", value).items()
            return {_replace_surrogates(key): _replace_surrogates(item) for key, item in pairs}
        case tuple():
            return tuple(_replace_surrogates(item) for item in cast("tuple[object, ...]", value))
        case _:
            return value


def json_text(value: object) -> str:
    return _ENCODER.encode(value).decode()


def json_or_none(value: object) -> str | None:
    return None if value is None or value is UNSET else json_text(value)


def _read(decoder: msgspec.json.Decoder[T], text: str | None) -> T | None:
    return None if text is None else decoder.decode(text)


def chat_from_row(row: Row) -> Chat:
    columns = dict(row)
    client_tools: str | None = columns["client_tools"]
    columns.update(
        labels=_LABELS.decode(columns["labels"]),
        client_tools=UNSET if client_tools is None else Raw(client_tools),
        last_error=_read(_ERROR, columns["last_error"]),
        retry_state=_read(_RETRY, columns["retry_state"]),
        pending_calls=_CALLS.decode(columns["pending_calls"]),
        recent_changes=tuple(columns["recent_changes"]),
    )
    return Chat(**{name: columns[name] for name in Chat.__struct_fields__})


def chat_after_write(change: Change, change_id: ChangeId, row: Row) -> Chat:
    """The row as written: the change's row with the columns that the database has set."""
    before = change.before.recent_changes if change.before else ()
    return msgspec.structs.replace(
        change.after,
        # Equal ids, but of the driver's own UUID type, which it encodes faster.
        id=row["id"],
        worker_id=row["worker_id"],
        title=row["title"],
        labels=_LABELS.decode(row["labels"]),
        pin_order=row["pin_order"],
        last_read_message_id=row["last_read_message_id"],
        workspace_id=row["workspace_id"],
        model_config_id=row["model_config_id"],
        reasoning_effort=row["reasoning_effort"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        runnable_at=row["runnable_at"],
        action_deadline=row["action_deadline"],
        interrupt_deadline=row["interrupt_deadline"],
        recent_changes=(change_id, *before)[:RECENT_CHANGES_KEPT],
    )


class _Stored(Struct, frozen=True, kw_only=True):
    """A message or queued message from a JSON column, its content not yet decoded."""

    id: int
    content: Raw
    content_version: int
    model_config_id: UUID | None
    reasoning_effort: str | None
    created_by: UUID | None


class _StoredMessage(_Stored, frozen=True, kw_only=True):
    revision: int
    role: Role
    visibility: Visibility
    compressed: bool
    deleted: bool
    usage: TokenUsage | None
    cost_micros: int | None
    runtime_ms: int | None
    provider_response_id: str | None
    created_at: datetime


class _StoredQueued(_Stored, frozen=True, kw_only=True):
    position: int
    steer: bool
    created_at: datetime


_USAGE = msgspec.json.Decoder(TokenUsage)
_PROMOTED = msgspec.json.Decoder(tuple[_Stored, ...])
_MESSAGES = msgspec.json.Decoder(tuple[_StoredMessage, ...])
_QUEUED = msgspec.json.Decoder(tuple[_StoredQueued, ...])

MESSAGE_COLUMNS: Final = """
    id, revision, role, visibility, content, content_version, compressed, deleted,
    model_config_id, reasoning_effort, created_by, usage, cost_micros, runtime_ms,
    provider_response_id, created_at"""
QUEUE_COLUMNS: Final = """
    id, position, steer, content, content_version, model_config_id, reasoning_effort,
    created_by, created_at"""

# Of one read: a chat may be larger than the memory of a process or one value of PostgreSQL.
MAX_READ_BYTES: Final = 16 * 1024 * 1024


def take_within_bytes(
    rows: LiteralString, *, order: LiteralString, max_bytes: LiteralString
) -> LiteralString:
    """SQL for the first of these messages up to `max_bytes`, and for the count of all."""
    return f"""(
        SELECT json_agg(s ORDER BY {order}) FILTER (WHERE ahead < {max_bytes}) AS messages,
            count(*) AS found
        FROM (SELECT *, sum(octet_length(content::text)) OVER (ORDER BY {order})
                  - octet_length(content::text) AS ahead
            FROM ({rows}) r) s)"""


def message_from_row(row: Row) -> Message:
    columns = dict(row)
    columns.update(content=decode_parts(columns["content"]), usage=_read(_USAGE, columns["usage"]))
    return Message(**columns)


def messages_from_json(text: str | None) -> tuple[Message, ...]:
    if text is None:
        return ()
    return tuple(Message(**_fields(stored)) for stored in _MESSAGES.decode(text))


def queue_from_json(text: str | None) -> tuple[QueuedMessage, ...]:
    if text is None:
        return ()
    return tuple(_queued(stored) for stored in _QUEUED.decode(text))


def _queued(stored: _StoredQueued) -> QueuedMessage:
    fields = _fields(stored)
    del fields["content_version"]
    return QueuedMessage(**fields)


def _fields(stored: _Stored) -> dict[str, Any]:
    fields = msgspec.structs.asdict(stored)
    fields["content"] = decode_parts(bytes(stored.content))
    return fields


def messages_written(change: Change, row: Row) -> tuple[Message, ...]:
    """The messages that a change has added, including promoted ones, in id order."""
    version, written_at = change.after.snapshot_version, row["written_at"]
    appended = tuple(_appended(added, version, written_at) for added in change.messages)
    if row["promoted"] is None:
        return appended
    promoted = sorted(_PROMOTED.decode(row["promoted"]), key=lambda stored: stored.id)
    return (
        *appended,
        *(
            Message(role="user", revision=version, created_at=written_at, **_fields(stored))
            for stored in promoted
        ),
    )


def _appended(added: AppendedMessage, version: int, written_at: datetime) -> Message:
    # Field by field: through a dict it takes three times as long, in every commit.
    draft = added.draft
    return Message(
        id=added.id,
        revision=version,
        created_at=written_at,
        role=draft.role,
        content=draft.content,
        visibility=draft.visibility,
        content_version=draft.content_version,
        compressed=draft.compressed,
        model_config_id=draft.model_config_id,
        reasoning_effort=draft.reasoning_effort,
        created_by=draft.created_by,
        usage=draft.usage,
        cost_micros=draft.cost_micros,
        runtime_ms=draft.runtime_ms,
        provider_response_id=draft.provider_response_id,
    )

"""Write a change: choose the statement of `apply`, compute its parameters, read what it returned.

Every commit runs this, so it computes only what the statement uses. A parameter costs time on both
sides, and an array of one element more than ten times as much as a plain value.
"""

from collections.abc import Sequence
from typing import Final, LiteralString

import msgspec
from msgspec import Struct

from chatd.domain.chat.call_waits import deadline_shift_s
from chatd.domain.chat.change import (
    INTERRUPT_DEADLINE_S,
    AppendedMessage,
    Change,
)
from chatd.domain.chat.messages import UsageEntry, UserInput, encode_parts
from chatd.domain.chat.parts import CONTENT_VERSION
from chatd.domain.chat.row import RECENT_CHANGES_KEPT, Chat, LineEnd
from chatd.domain.chat.runs import RunChange, run_change
from chatd.domain.chat.transitions import LoadedChat
from chatd.domain.chat.user_transitions import named_files
from chatd.domain.chat_views.public_chat import action_summary
from chatd.domain.deployment.webhooks import turn_event
from chatd.domain.errors import InvalidInput, InvariantBroken, TooManyRules
from chatd.domain.ids import ChangeId
from chatd.domain.tool_policy.rules import PolicyLayer, ToolPolicy
from chatd.store.chat.apply import (
    APPLY,
    APPLY_CALLS,
    APPLY_LAST_STEP,
    APPLY_STEP,
    APPLY_TO_LINES,
    APPLY_WITHOUT_QUEUE,
    CALL_NAMES,
    INSERT_CHAT,
    INSERT_ROOT_CHAT,
    MESSAGE_NAMES,
    ROW_NAMES,
    RUN_NAMES,
)
from chatd.store.chat.chats import read_diff_status, read_mcp_servers, read_takeover
from chatd.store.chat.messages import messages_written
from chatd.store.chat.operation import AppliedChange
from chatd.store.database.conn import (
    CheckFailed,
    Conn,
    MissingReference,
    Row,
    json_or_none,
    json_text,
    replace_surrogates_deep,
    strip_unstorable,
)
from chatd.store.database.pool import Pool
from chatd.store.deployment.tool_policies import read_layers

_FILE_REFERENCE: Final = "chat_files_file_id_fkey"
_READ_LAYERS: Final = frozenset({APPLY_CALLS.text, INSERT_CHAT.text, INSERT_ROOT_CHAT.text})
_STEPS: Final = frozenset({APPLY_STEP.text, APPLY_CALLS.text, APPLY_LAST_STEP.text})
_FEW_RULES: Final = "a_tool_policy_has_few_rules"
_LABELS = msgspec.json.Decoder(dict[str, str])

_Values = dict[str, object]


async def apply(
    conn: Conn, change: Change, change_id: ChangeId, loaded: LoadedChat | None = None
) -> AppliedChange | None:
    """Write the change by one statement. None on a conflict: the row has another version, or the
    new chat exists already. Raises InvalidInput for a file that does not exist any more."""
    bound = _bind_change(change, change_id)
    try:
        if isinstance(conn, Pool) and _is_shared(change, bound.text):
            row = await conn.write(bound.text, change.after.id, _place(change.after), *bound.args)
        else:
            row = await conn.fetchrow(bound.text, *bound.args)
    except MissingReference as missing:
        if missing.constraint != _FILE_REFERENCE:
            raise
        raise InvalidInput("content", "a file was deleted while it was sent") from None
    except CheckFailed as failed:
        if failed.constraint != _FEW_RULES:
            raise
        raise TooManyRules from None
    if row is None:
        return None
    return AppliedChange(
        chat=_chat_after_write(bound.change, change_id, row),
        messages=messages_written(bound.change, row),
        deleted_ids=tuple(row["forgotten"] or ()),
        change=change,
        loaded=loaded,
        layers=_layers(change, row) if bound.text in _READ_LAYERS else None,
    )


def _is_shared(change: Change, statement: LiteralString) -> bool:
    """Whether it may share a transaction: it locks no row but the chat's own."""
    if change.before is None:
        after = change.after
        return change.request is None and after.parent_chat_id is None and after.project_id is None
    return statement in _STEPS


def _place(row: Chat) -> bytes:
    """Sorts in the order of `lock_tree` and `RELEASE`, so that they and a shared transaction never
    wait for each other's rows."""
    return row.root_chat_id.bytes + bytes([not row.is_root]) + row.id.bytes


def _layers(change: Change, row: Row) -> tuple[PolicyLayer, ...]:
    found = read_layers(row["layers"])
    if change.before is not None or not change.rules:
        return found
    own = PolicyLayer(name="chat", policy=ToolPolicy(rules=tuple(change.rules)))
    return (*(layer for layer in found if layer.name != "chat"), own)


def _chat_after_write(change: Change, change_id: ChangeId, row: Row) -> Chat:
    """The row as written: the change's row with the columns that the database has set."""
    before, written_at = change.before, row["written_at"]
    recent = before.recent_changes if before else ()
    return msgspec.structs.replace(
        change.after,
        # Equal ids, but of the driver's own UUID type, which it encodes faster.
        id=row["id"],
        worker_id=row["worker_id"],
        title=row["title"],
        labels=_LABELS.decode(row["labels"]),
        pin_order=row["pin_order"],
        workspace_id=row["workspace_id"],
        mcp_server_ids=read_mcp_servers(row["mcp_server_ids"]),
        project_id=row["project_id"],
        mode=row["mode"],
        diff_status=read_diff_status(row["diff_status"]),
        model_config_id=row["model_config_id"],
        reasoning_effort=row["reasoning_effort"],
        model_required=row["model_required"],
        created_at=before.created_at if before else written_at,
        updated_at=before.updated_at if before and not change.touch else written_at,
        runnable_at=row["runnable_at"],
        action_deadline=row["action_deadline"],
        interrupt_deadline=row["interrupt_deadline"],
        takeover=(read_takeover(row["takeover"]) if _takes_over(change) else change.after.takeover),
        recent_changes=(change_id, *recent)[:RECENT_CHANGES_KEPT],
    )


def _takes_over(change: Change) -> bool:
    return change.before is not None and change.after.takeover != change.before.takeover


class _BoundStatement(Struct, frozen=True):
    """`change` is the change as it will be stored."""

    change: Change
    text: LiteralString
    args: Sequence[object]


def _bind_change(change: Change, change_id: ChangeId) -> _BoundStatement:
    """Replace lone surrogates, which the database cannot store, by U+FFFD: in the change too, so
    that viewers are sent what was stored."""
    try:
        contents = [encode_parts(added.draft.content) for added in change.messages]
        text, args = _bind(change, change_id, contents)
    except UnicodeEncodeError:
        return _bind_change(replace_surrogates_deep(change), change_id)
    if any("\ufffd" in content for content in contents):
        change = replace_surrogates_deep(change)
    return _BoundStatement(change, text, args)


def _bind(
    change: Change, change_id: ChangeId, contents: list[str]
) -> tuple[LiteralString, Sequence[object]]:
    row, event, run = _row(change, change_id), turn_event(change), run_change(change)
    action = json_or_none(action_summary(change.after)) if event == "turn.needs_action" else None
    values: _Values = {"event": event, "action": action, "new_mode": change.mode}
    if change.before is None:
        new = _new_chat(change)
        if _is_plain(change):
            message = zip(MESSAGE_NAMES, _message(change.messages[0], contents[0]), strict=True)
            new.update(zip(ROW_NAMES, row, strict=True))
            new.update(message, run_begins=run is not None and run.begins)
            return INSERT_ROOT_CHAT.text, INSERT_ROOT_CHAT.args(new)
        statement = INSERT_CHAT
        values.update(new)
    elif change.delete_from is not None:
        statement = APPLY_TO_LINES
        values.update(_queue(change), **_lines(change, change.before), **_expected(change.before))
    elif _changes_queue(change):
        statement = APPLY
        values.update(_queue(change), **_expected(change.before))
    elif (
        len(contents) == 1
        and len(change.usage) <= 1
        and change.request is None
        and change.mode is None
        and not change.decisions
        and not named_files(change)
    ):
        call = _call(change.usage[0]) if change.usage else _NO_CALL
        message = _message(change.messages[0], contents[0])
        before = change.before
        expected = (before.snapshot_version, before.change_id)
        if event is not None or run is not None or change.after.lost != before.lost:
            ends = (event, action, *_run(change, run))
            return APPLY_LAST_STEP.text, (*row, *expected, *message, *call, *ends)
        step = APPLY_CALLS if change.after.pending_calls else APPLY_STEP
        return step.text, (*row, *expected, *message, *call)
    else:
        statement = APPLY_WITHOUT_QUEUE
        values.update(_expected(change.before))
    values.update(_answers(change))
    values.update(zip(ROW_NAMES, row, strict=True))
    values.update(zip(RUN_NAMES, _run(change, run), strict=True))
    values.update(_added_rows(change, contents))
    return statement.text, statement.args(values)


def _is_plain(change: Change) -> bool:
    """A new root chat outside any project, with one message and nothing else."""
    after = change.after
    return (
        len(change.messages) == 1
        and after.parent_chat_id is None
        and after.project_id is None
        and change.request is None
        and not change.rules
        and not change.usage
        and not named_files(change)
    )


def _expected(before: Chat) -> _Values:
    return {"expected": before.snapshot_version, "expected_change": before.change_id}


def _changes_queue(change: Change) -> bool:
    """Other changes leave the queue's columns of the row as they are."""
    return bool(
        change.promote
        or change.enqueue
        or change.dequeue
        or change.clear_queue
        or change.rewrite
        or change.place
    )


def _row(change: Change, change_id: ChangeId) -> tuple[object, ...]:
    """The values of ROW_NAMES."""
    row = change.after
    return (
        row.id,
        change_id,
        row.status,
        row.archived,
        json_or_none(row.last_error),
        row.history_version,
        row.retry_version,
        json_or_none(row.retry_state),
        row.attempt,
        row.next_message_id,
        json_text(row.pending_calls) if row.pending_calls else "[]",
        row.turn_message_id,
        row.plan_message_id,
        row.compaction_requested,
        json_or_none(row.agent_wait),
        row.queue_held,
        row.worker_id,
        row.epoch,
        row.orphan_count,
        json_or_none(row.setbacks),
        change.delay_s,
        row.model_config_id,
        row.reasoning_effort,
        change.touch,
        deadline_shift_s(change.before, row),
        INTERRUPT_DEADLINE_S,
    )


def _run(change: Change, run: RunChange | None) -> tuple[object, ...]:
    """The values of RUN_NAMES."""
    row = (json_or_none(change.after.lost), _takes_over(change))
    if run is None:
        return False, None, None, None, *row
    if run.end is None:
        return run.begins, None, None, None, *row
    end = run.end
    return run.begins, end.outcome, end.end_message_id, json_text(end.detail), *row


def _new_chat(change: Change) -> _Values:
    row, fence = change.after, change.parent_fence
    return {
        "owner_id": row.owner_id,
        "root_chat_id": row.root_chat_id,
        "parent_chat_id": row.parent_chat_id,
        "title": strip_unstorable(row.title),
        "model_required": row.model_required,
        "labels": json_text(row.labels),
        "workspace_id": row.workspace_id,
        "mode": row.mode,
        "client_tools": json_or_none(row.client_tools),
        "max_cost_micros": row.max_cost_micros,
        "mcp_server_ids": row.mcp_server_ids,
        "project_id": row.project_id,
        "fence_worker": fence.worker_id if fence else None,
        "fence_epoch": fence.epoch if fence else None,
        "fence_history": fence.history_version if fence else None,
    }


def _added_rows(change: Change, contents: list[str]) -> _Values:
    """Arrays for any number of messages and usage entries."""
    messages = [_message(*one) for one in zip(change.messages, contents, strict=True)]
    columns = zip(*messages, strict=True) if messages else [()] * len(MESSAGE_NAMES)
    return {
        **dict(zip(MESSAGE_NAMES, columns, strict=True)),
        "file_ids": list(named_files(change)) or None,
        "paid": json_text([_usage_row(entry) for entry in change.usage]) if change.usage else None,
        **_request(change),
    }


def _message(added: AppendedMessage, content: str) -> tuple[object, ...]:
    """The values of MESSAGE_NAMES."""
    draft = added.draft
    return (
        added.id,
        draft.role,
        draft.visibility,
        content,
        draft.content_version,
        draft.compressed,
        draft.model_config_id,
        draft.reasoning_effort,
        draft.created_by,
        json_or_none(draft.usage),
        draft.cost_micros,
        draft.runtime_ms,
        draft.provider_response_id,
        draft.finish_reason,
    )


def _call(entry: UsageEntry) -> tuple[object, ...]:
    """The values of CALL_NAMES."""
    usage = entry.usage
    return (
        entry.message_id,
        entry.kind,
        entry.model_config_id,
        entry.provider,
        entry.model,
        usage.input_tokens,
        usage.output_tokens,
        usage.reasoning_tokens,
        usage.cache_creation_tokens,
        usage.cache_read_tokens,
        entry.cost_micros,
        json_or_none(entry.price),
        entry.runtime_ms,
        entry.ok,
        usage.web_searches,
        usage.estimated,
        entry.call_id,
    )


_NO_CALL: Final = (None,) * len(CALL_NAMES)


def _usage_row(entry: UsageEntry) -> _Values:
    return {
        "message_id": entry.message_id,
        "kind": entry.kind,
        "model_config_id": entry.model_config_id,
        "provider": entry.provider,
        "model": entry.model,
        "input_tokens": entry.usage.input_tokens,
        "output_tokens": entry.usage.output_tokens,
        "reasoning_tokens": entry.usage.reasoning_tokens,
        "cache_creation_tokens": entry.usage.cache_creation_tokens,
        "cache_read_tokens": entry.usage.cache_read_tokens,
        "cost_micros": entry.cost_micros,
        "price": entry.price,
        "runtime_ms": entry.runtime_ms,
        "ok": entry.ok,
        "web_searches": entry.usage.web_searches,
        "estimated": entry.usage.estimated,
        "call_id": entry.call_id,
    }


def _queue(change: Change) -> _Values:
    if len(change.enqueue) > 1 or len(change.rewrite) > 1:
        raise InvariantBroken("A change may enqueue at most one message and rewrite at most one.")
    added = change.enqueue[0] if change.enqueue else None
    edited = change.rewrite[0] if change.rewrite else None
    row = change.after
    return {
        "queue_version": row.queue_version,
        "next_queue_id": row.next_queue_id,
        "queue_len": row.queue_len,
        "steer_len": row.steer_len,
        "promote": change.promote,
        "promote_ids": change.promote_ids,
        "dequeue": change.dequeue,
        "clear_queue": change.clear_queue,
        "queue_id": added.id if added else None,
        "steer": added.steer if added else None,
        "queue_content_version": CONTENT_VERSION,
        "place_ids": [place.id for place in change.place],
        "positions": [place.position for place in change.place],
        "steers": [place.steer for place in change.place],
        "rewrite_id": edited.id if edited else None,
        **_prompt("queue", added.prompt if added else None),
        **_prompt("rewrite", edited.prompt if edited else None),
    }


def _lines(change: Change, before: Chat) -> _Values:
    """The line that the change hides, and the one that it shows: its new turn or a restored one."""
    restored = change.restore
    return {
        "delete_from": change.delete_from,
        "line_end": json_text(LineEnd.of(before)),
        "restore_ids": [] if restored is None else restored.hidden,
        "shown_id": change.after.turn_message_id if restored is None else restored.message_id,
    }


def _prompt(prefix: str, prompt: UserInput | None) -> _Values:
    return {
        f"{prefix}_content": encode_parts(prompt.content) if prompt else None,
        f"{prefix}_model": prompt.model_config_id if prompt else None,
        f"{prefix}_effort": prompt.reasoning_effort if prompt else None,
        f"{prefix}_mode": prompt.mode if prompt else None,
        f"{prefix}_author": prompt.created_by if prompt else None,
    }


def _answers(change: Change) -> _Values:
    return {
        "answer_ids": [answer.tool_call_id for answer in change.decisions] or None,
        "answer_decisions": [answer.decision for answer in change.decisions] or None,
        "answerers": [answer.answered_by for answer in change.decisions] or None,
        "new_rules": json_text(change.rules) if change.rules else None,
    }


def _request(change: Change) -> _Values:
    request = change.request
    prompts = [added.id for added in change.messages if added.draft.role == "user"]
    return {
        "scope": request.scope if request else None,
        "request_id": request.id if request else None,
        "op": request.op if request else None,
        "fingerprint": request.fingerprint if request else None,
        "request_message_id": prompts[-1] if prompts else None,
        "request_queue_id": change.enqueue[0].id if change.enqueue else None,
    }

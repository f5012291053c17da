"""Writing a change: one statement, one round trip, all of it or nothing.

The row is updated only if it still has the version the change was made from;
everything else in the statement joins that one updated row, so a lost race
writes nothing. Nothing but this module, `acquire` and the metadata updates in
`chats` writes to chats, messages or the queue.

Why a statement this wide is right: the version check makes what `queued` reads
(the head of the queue, in the statement's own snapshot) agree with the row.
If the snapshot is older than the row, its version differs and nothing happens.
"""

from collections.abc import Mapping
from typing import Final, cast

from chatd.domain.change import ACTION_TIMEOUT_S, INTERRUPT_TIMEOUT_S, Change
from chatd.domain.errors import InvariantBroken
from chatd.domain.ids import ChangeId
from chatd.domain.messages import Draft, Prompt
from chatd.domain.parts import CONTENT_VERSION, encode_parts
from chatd.store.rows import json_or_none, json_text, mended, plain
from chatd.store.statement import named

_JOINING: Final = """
WITH joining AS MATERIALIZED (
    SELECT q.*, row_number() OVER (
        ORDER BY array_position(:promote_ids::bigint[], q.id), NOT q.steer, q.position) AS nth
    FROM chat_queued_messages q
    WHERE q.chat_id = :chat_id
      AND (:promote_ids::bigint[] = '{}' OR q.id = ANY (:promote_ids::bigint[]))
    ORDER BY nth LIMIT :promote::bigint),
"""

_CHANGED: Final = """
changed AS (
    UPDATE chats c SET
        snapshot_version = c.snapshot_version + 1,
        status = :status::text, archived = :archived, last_error = :last_error,
        history_version = :history_version, queue_version = :queue_version,
        retry_version = :retry_version, retry_state = :retry_state, attempt = :attempt,
        next_message_id = :next_message_id, next_queue_id = :next_queue_id,
        queue_len = :queue_len, steer_len = :steer_len, pending_calls = :pending_calls,
        turn_message_id = :turn_message_id, compaction_requested = :compaction_requested,
        worker_id = :worker_id::uuid, epoch = :epoch, orphan_count = :orphan_count,
        pin_order = least(c.pin_order, :pin_order),
        model_config_id = coalesce((SELECT j.model_config_id FROM joining j
            WHERE j.model_config_id IS NOT NULL ORDER BY j.nth DESC LIMIT 1), :model_config_id),
        reasoning_effort = coalesce((SELECT j.reasoning_effort FROM joining j
            WHERE j.reasoning_effort IS NOT NULL ORDER BY j.nth DESC LIMIT 1), :reasoning_effort),
        updated_at = CASE WHEN :touch THEN now() ELSE c.updated_at END,
        runnable_at = CASE
            WHEN :worker_id::uuid IS NULL AND :status::text IN ('running', 'interrupting')
            THEN coalesce(c.runnable_at, now()) END,
        action_deadline = CASE WHEN :status::text = 'requires_action'
            THEN coalesce(c.action_deadline, now() + :action_s * interval '1 s') END,
        interrupt_deadline = CASE WHEN :status::text = 'interrupting'
            THEN coalesce(c.interrupt_deadline, now() + :interrupt_s * interval '1 s') END,
        recent_changes = (ARRAY[:change_id::bigint] || c.recent_changes)[1:8]
    WHERE c.id = :chat_id AND c.snapshot_version = :expected
      AND (SELECT count(*) FROM joining) = :promote
    RETURNING c.*),
"""

# A child joins a family that is there: root and parent, locked in the order in which a family
# is, so that neither can be archived before the child can be seen.
_CREATED: Final = """
WITH family AS MATERIALIZED (
    SELECT f.id FROM chats f
    WHERE f.id IN (:root_chat_id::uuid, :parent_chat_id::uuid) AND f.root_chat_id = :root_chat_id
      AND NOT f.archived
    ORDER BY (f.id <> f.root_chat_id), f.id FOR SHARE),
changed AS (
    INSERT INTO chats (id, owner_id, root_chat_id, parent_chat_id, title, model_config_id,
        reasoning_effort, labels, workspace_id, mode, client_tools, status, snapshot_version,
        history_version, attempt, next_message_id, pending_calls, turn_message_id, worker_id,
        epoch, runnable_at, recent_changes)
    SELECT :chat_id::uuid, :owner_id, :root_chat_id::uuid, :parent_chat_id::uuid, :title,
        :model_config_id, :reasoning_effort, :labels, :workspace_id, :mode, :client_tools,
        :status::text, 1, :history_version, :attempt, :next_message_id, :pending_calls,
        :turn_message_id, :worker_id::uuid, :epoch,
        CASE WHEN :worker_id::uuid IS NULL THEN now() END, ARRAY[:change_id::bigint]
    WHERE :parent_chat_id IS NULL OR (SELECT count(*) FROM family)
        = CASE WHEN :parent_chat_id = :root_chat_id THEN 1 ELSE 2 END
    ON CONFLICT (id) DO NOTHING
    RETURNING *),
"""

_APPENDED: Final = """
appended AS (
    INSERT INTO chat_messages (chat_id, root_chat_id, revision, id, role, visibility, content,
        content_version, compressed, model_config_id, reasoning_effort, created_by, usage,
        cost_micros, runtime_ms, provider_response_id)
    SELECT c.id, c.root_chat_id, c.snapshot_version, m.id, m.role, m.visibility, m.content::json,
        m.content_version, m.compressed, m.model_config_id, m.reasoning_effort, m.created_by,
        m.usage::json, m.cost_micros, m.runtime_ms, m.provider_response_id
    FROM changed c, unnest(:message_ids::bigint[], :roles::text[], :visibilities::text[],
        :contents::text[], :content_versions::smallint[], :compressed::boolean[],
        :models::uuid[], :efforts::text[], :authors::uuid[], :usages::text[], :costs::bigint[],
        :runtimes::bigint[], :response_ids::text[])
        AS m (id, role, visibility, content, content_version, compressed, model_config_id,
            reasoning_effort, created_by, usage, cost_micros, runtime_ms, provider_response_id)),
paid AS (
    INSERT INTO usage_events (at, owner_id, chat_id, root_chat_id, message_id, kind,
        model_config_id, provider, model, input_tokens, output_tokens, reasoning_tokens,
        cache_creation_tokens, cache_read_tokens, cost_micros, price, runtime_ms, ok)
    SELECT greatest(now(), (SELECT until FROM usage_rolled_up)), c.owner_id, c.id,
        c.root_chat_id, u.message_id, u.kind, u.model_config_id, u.provider, u.model,
        u.input_tokens, u.output_tokens, u.reasoning_tokens, u.cache_creation_tokens,
        u.cache_read_tokens, u.cost_micros, u.price, u.runtime_ms, u.ok
    FROM changed c, json_to_recordset(:paid::json) AS u (message_id bigint, kind text,
        model_config_id uuid, provider text, model text, input_tokens bigint,
        output_tokens bigint, reasoning_tokens bigint, cache_creation_tokens bigint,
        cache_read_tokens bigint, cost_micros bigint, price json, runtime_ms bigint, ok boolean)),
requested AS (
    INSERT INTO chat_requests (scope, request_id, chat_id, op, fingerprint, version, message_id,
        queue_id)
    SELECT :scope, :request_id, c.id, :op, :fingerprint, c.snapshot_version,
        :request_message_id::bigint, :request_queue_id::bigint
    FROM changed c WHERE :request_id::uuid IS NOT NULL)
"""

# By the chat's id itself, and not by way of the one row that changed, whose id the planner does
# not know; that row only says whether anything happens at all.
_QUEUE: Final = """
, forgotten AS (
    UPDATE chat_messages m SET deleted = true, revision = c.snapshot_version
    FROM changed c
    WHERE m.chat_id = :chat_id AND m.id >= :delete_from AND NOT m.deleted
    RETURNING m.id),
promoted AS (
    INSERT INTO chat_messages (chat_id, root_chat_id, revision, id, role, visibility, content,
        content_version, model_config_id, reasoning_effort, created_by)
    SELECT c.id, c.root_chat_id, c.snapshot_version, c.next_message_id - :promote + j.nth - 1,
        'user', 'both', j.content, j.content_version, j.model_config_id, j.reasoning_effort,
        j.created_by
    FROM changed c, joining j
    RETURNING id, content, content_version, model_config_id, reasoning_effort, created_by),
dequeued AS (
    DELETE FROM chat_queued_messages q USING changed c
    WHERE q.chat_id = :chat_id
      AND (:clear_queue OR q.id = ANY (:dequeue::bigint[]) OR q.id IN (SELECT id FROM joining))),
enqueued AS (
    INSERT INTO chat_queued_messages (chat_id, root_chat_id, id, position, steer, content,
        content_version, model_config_id, reasoning_effort, created_by)
    SELECT c.id, c.root_chat_id, :queue_id::bigint, :queue_id, :steer, :queue_content,
        :queue_content_version, :queue_model, :queue_effort, :queue_author
    FROM changed c WHERE :queue_id IS NOT NULL),
rewritten AS (
    UPDATE chat_queued_messages q SET content = :rewrite_content,
        content_version = :queue_content_version,
        model_config_id = coalesce(:rewrite_model, q.model_config_id),
        reasoning_effort = coalesce(:rewrite_effort, q.reasoning_effort)
    FROM changed c WHERE q.chat_id = :chat_id AND q.id = :rewrite_id),
placed AS (
    UPDATE chat_queued_messages q SET position = p.position, steer = p.steer
    FROM changed c, unnest(:place_ids::bigint[], :positions::bigint[], :steers::boolean[])
        AS p (id, position, steer)
    WHERE q.chat_id = :chat_id AND q.id = p.id)
"""

_RESULT: Final = """
SELECT title, labels, pin_order, last_read_message_id, workspace_id, model_config_id,
    reasoning_effort, created_at, updated_at, runnable_at, action_deadline, interrupt_deadline,
    now() AS written_at
"""

APPLY: Final = named(
    _JOINING,
    _CHANGED,
    _APPENDED,
    _QUEUE,
    _RESULT,
    ", (SELECT json_agg(p) FROM promoted p) AS promoted"
    ", (SELECT array_agg(f.id ORDER BY f.id) FROM forgotten f) AS forgotten FROM changed",
)
CREATE: Final = named(
    _CREATED, _APPENDED, _RESULT, ", NULL AS promoted, NULL AS forgotten FROM changed"
)


def prepared(change: Change, change_id: ChangeId) -> tuple[Change, Mapping[str, object]]:
    """What to send, and the change as it will be stored.

    Halves of characters, which the database cannot hold, give way to U+FFFD. In the change too,
    so that what is told afterwards is what was stored.
    """
    try:
        sent = values(change, change_id)
    except UnicodeEncodeError:
        change = mended(change)
        return change, values(change, change_id)
    if any("\ufffd" in content for content in cast("list[str]", sent["contents"])):
        change = mended(change)
    return change, sent


def values(change: Change, change_id: ChangeId) -> Mapping[str, object]:
    """Everything either statement asks for, by name."""
    return {
        **_row_values(change, change_id),
        **_message_values(change),
        **_queue_values(change),
        **_request_values(change),
    }


def _row_values(change: Change, change_id: ChangeId) -> dict[str, object]:
    row = change.after
    return {
        "chat_id": row.id,
        "expected": change.before.snapshot_version if change.before else 0,
        "change_id": change_id,
        "owner_id": row.owner_id,
        "root_chat_id": row.root_chat_id,
        "parent_chat_id": row.parent_chat_id,
        "title": plain(row.title),
        "labels": json_text(row.labels),
        "workspace_id": row.workspace_id,
        "mode": row.mode,
        "client_tools": json_or_none(row.client_tools),
        "status": row.status,
        "archived": row.archived,
        "last_error": json_or_none(row.last_error),
        "history_version": row.history_version,
        "queue_version": row.queue_version,
        "retry_version": row.retry_version,
        "retry_state": json_or_none(row.retry_state),
        "attempt": row.attempt,
        "next_message_id": row.next_message_id,
        "next_queue_id": row.next_queue_id,
        "queue_len": row.queue_len,
        "steer_len": row.steer_len,
        "pending_calls": json_text(row.pending_calls),
        "turn_message_id": row.turn_message_id,
        "compaction_requested": row.compaction_requested,
        "worker_id": row.worker_id,
        "epoch": row.epoch,
        "orphan_count": row.orphan_count,
        # Archiving takes a pin away; a pin set meanwhile elsewhere is not ours to undo.
        "pin_order": 0 if row.archived else 2**31 - 1,
        "model_config_id": row.model_config_id,
        "reasoning_effort": row.reasoning_effort,
        "touch": change.touch,
        "action_s": ACTION_TIMEOUT_S,
        "interrupt_s": INTERRUPT_TIMEOUT_S,
    }


def _message_values(change: Change) -> dict[str, object]:
    drafts: list[Draft] = [added.draft for added in change.messages]
    return {
        "message_ids": [added.id for added in change.messages],
        "roles": [draft.role for draft in drafts],
        "visibilities": [draft.visibility for draft in drafts],
        "contents": [encode_parts(draft.content) for draft in drafts],
        "content_versions": [draft.content_version for draft in drafts],
        "compressed": [draft.compressed for draft in drafts],
        "models": [draft.model_config_id for draft in drafts],
        "efforts": [draft.reasoning_effort for draft in drafts],
        "authors": [draft.created_by for draft in drafts],
        "usages": [json_or_none(draft.usage) for draft in drafts],
        "costs": [draft.cost_micros for draft in drafts],
        "runtimes": [draft.runtime_ms for draft in drafts],
        "response_ids": [draft.provider_response_id for draft in drafts],
        "delete_from": change.delete_from,
        "paid": _paid(change),
    }


def _paid(change: Change) -> str | None:
    if not change.usage:
        return None
    return json_text(
        [
            {
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
            }
            for entry in change.usage
        ]
    )


def _queue_values(change: Change) -> dict[str, object]:
    if len(change.enqueue) > 1 or len(change.rewrite) > 1:
        raise InvariantBroken("A change puts at most one message into the queue, or rewrites one.")
    added = change.enqueue[0] if change.enqueue else None
    edited = change.rewrite[0] if change.rewrite else None
    return {
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
        **_prompt_values("queue", added.prompt if added else None),
        **_prompt_values("rewrite", edited.prompt if edited else None),
    }


def _prompt_values(prefix: str, prompt: Prompt | None) -> dict[str, object]:
    return {
        f"{prefix}_content": encode_parts(prompt.content) if prompt else None,
        f"{prefix}_model": prompt.model_config_id if prompt else None,
        f"{prefix}_effort": prompt.reasoning_effort if prompt else None,
        f"{prefix}_author": prompt.created_by if prompt else None,
    }


def _request_values(change: Change) -> dict[str, object]:
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

"""The statements that write a change: one statement, one round trip, all of it or nothing.

The row is updated only if it still has the version that the change was decided from, written by
the same change: after a failover that lost commits the number can stand for another past. The other
parts of the statement join that updated row, so a conflict writes nothing. The version check also
covers `joining`, which reads the queue in the statement's snapshot: if the snapshot is older than
the row, the versions differ. Only these statements, `acquire`, `release` and the updates of
unversioned columns write to chats, messages or the queue.

`APPLY_TO_LINES` writes any change. Smaller statements from the same fragments write the common
changes in two thirds of the server time. `change_writer` chooses the statement and its values.
"""

from typing import Final

from chatd.store.chat.runs import BEGIN_FIRST_RUN, BEGIN_RUN, END_RUN, take_over
from chatd.store.database.conn import named_statement
from chatd.store.deployment.tool_policies import layers_of

# Parameters in the order in which `change_writer` lists their values: `_row`, `_message`, `_call`.
# A dict of them, built and looked up in every commit, would take several times as long.
ROW_NAMES: Final = (
    "chat_id",
    "change_id",
    "status",
    "archived",
    "last_error",
    "history_version",
    "retry_version",
    "retry_state",
    "attempt",
    "next_message_id",
    "pending_calls",
    "turn_message_id",
    "plan_message_id",
    "compaction_requested",
    "agent_wait",
    "queue_held",
    "worker_id",
    "epoch",
    "orphan_count",
    "setbacks",
    "delay_s",
    "model_config_id",
    "reasoning_effort",
    "touch",
    "action_s",
    "interrupt_s",
)
MESSAGE_NAMES: Final = (
    "message_id",
    "role",
    "visibility",
    "content",
    "content_version",
    "compressed",
    "model",
    "effort",
    "author",
    "usage",
    "cost",
    "runtime",
    "response_id",
    "finish_reason",
)
CALL_NAMES: Final = (
    "paid_message_id",
    "paid_kind",
    "paid_model_id",
    "paid_provider",
    "paid_model",
    "input_tokens",
    "output_tokens",
    "reasoning_tokens",
    "cache_creation_tokens",
    "cache_read_tokens",
    "paid_micros",
    "price",
    "paid_runtime",
    "paid_ok",
    "web_searches",
    "estimated",
    "call_id",
)

_JOINING: Final = """
WITH joining AS MATERIALIZED (
    SELECT q.*, row_number() OVER (
        ORDER BY array_position(:promote_ids::bigint[], q.id), NOT q.steer, q.position) AS nth
    FROM chat_queued_messages q
    WHERE q.chat_id = :chat_id
      AND (:promote_ids::bigint[] = '{}' OR q.id = ANY (:promote_ids::bigint[]))
    ORDER BY nth LIMIT :promote::bigint),
"""

# `least` ignores NULL: without a delay a runnable chat keeps its time, and another gets now().
# Archiving unpins the chat. Otherwise a pin set since the row was loaded stays.
_ROW: Final = """
changed AS (
    UPDATE chats c SET
        snapshot_version = c.snapshot_version + 1, history_version = :history_version,
        status = :status::text, archived = :archived::boolean, last_error = :last_error,
        retry_version = :retry_version, retry_state = :retry_state, attempt = :attempt,
        next_message_id = :next_message_id, pending_calls = :pending_calls,
        turn_message_id = :turn_message_id, plan_message_id = :plan_message_id,
        compaction_requested = :compaction_requested,
        turn_no = c.turn_no + (:turn_message_id::bigint IS NOT NULL
            AND :turn_message_id IS DISTINCT FROM c.turn_message_id)::int,
        agent_wait = :agent_wait, queue_held = :queue_held,
        worker_id = :worker_id::uuid, epoch = :epoch, orphan_count = :orphan_count,
        setbacks = :setbacks,
        pin_order = CASE WHEN :archived::boolean THEN 0 ELSE c.pin_order END,
        updated_at = CASE WHEN :touch THEN now() ELSE c.updated_at END,
        runnable_at = CASE
            WHEN :worker_id::uuid IS NULL AND :status::text IN ('running', 'interrupting')
            THEN coalesce(least(c.runnable_at, now() + :delay_s::float8 * interval '1 s'), now())
            END,
        action_deadline = CASE WHEN :status::text = 'requires_action'
            THEN coalesce(c.action_deadline, now()) + :action_s * interval '1 s' END,
        interrupt_deadline = CASE WHEN :status::text = 'interrupting'
            THEN coalesce(c.interrupt_deadline, now() + :interrupt_s * interval '1 s') END,
        recent_changes = (ARRAY[:change_id::bigint] || c.recent_changes)[1:8],
"""

# For a change that begins or ends an attempt, or forgets the death of the last owner.
_RUN_COLUMNS: Final = f"""
        run_no = c.run_no + :run_begins::boolean::int, lost = :lost::jsonb,
        takeover = CASE WHEN :takes_over::boolean THEN {take_over(":worker_id::uuid")}
            ELSE c.takeover END,
"""

# A mode that users chose since the row was loaded stays.
_MODE: Final = """
        mode = CASE WHEN :new_mode::text IS NULL THEN c.mode ELSE nullif(:new_mode, 'off') END,
"""

_CHANGED: Final = """
        model_config_id = :model_config_id, reasoning_effort = :reasoning_effort
    WHERE c.id = :chat_id AND c.snapshot_version = :expected
      AND coalesce(c.recent_changes[1], 0) = :expected_change
    RETURNING c.*),
"""

_CHANGED_WITH_QUEUE: Final = """
        queue_version = :queue_version, next_queue_id = :next_queue_id,
        queue_len = :queue_len, steer_len = :steer_len,
        model_config_id = coalesce((SELECT j.model_config_id FROM joining j
            WHERE j.model_config_id IS NOT NULL ORDER BY j.nth DESC LIMIT 1), :model_config_id),
        reasoning_effort = coalesce((SELECT j.reasoning_effort FROM joining j
            WHERE j.reasoning_effort IS NOT NULL ORDER BY j.nth DESC LIMIT 1), :reasoning_effort),
        mode = nullif(coalesce((SELECT j.mode FROM joining j
            WHERE j.mode IS NOT NULL ORDER BY j.nth DESC LIMIT 1), :new_mode, c.mode), 'off')
    WHERE c.id = :chat_id AND c.snapshot_version = :expected
      AND coalesce(c.recent_changes[1], 0) = :expected_change
      AND (SELECT count(*) FROM joining) = :promote
    RETURNING c.*),
"""

# A subagent needs an unarchived root and parent. Both are locked, in the order of `lock_tree`, so
# that neither is archived before the new chat is visible. With a fence the parent must still be run
# by that worker, at that history. What it inherits is read here: the parent may have gained a
# workspace since its worker read the row. A subagent is in the project of its root. A root chat is
# created in a project only while its owner may put chats there: a removal of the owner waits. The
# project is locked before the membership, as by the writes of `store.projects`.
_CREATED: Final = """
WITH family AS MATERIALIZED (
    SELECT f.id, f.workspace_id, f.mcp_server_ids, f.project_id FROM chats f
    WHERE f.id IN (:root_chat_id::uuid, :parent_chat_id::uuid) AND f.root_chat_id = :root_chat_id
      AND NOT f.archived AND (:fence_worker::uuid IS NULL OR f.id <> :parent_chat_id OR (
          f.worker_id = :fence_worker AND f.epoch = :fence_epoch::bigint AND f.status = 'running'
          AND f.history_version = :fence_history::bigint AND f.mode IS DISTINCT FROM 'explore'))
    ORDER BY (f.id <> f.root_chat_id), f.id FOR SHARE),
place AS MATERIALIZED (SELECT id FROM projects WHERE id = :project_id::uuid FOR KEY SHARE),
member AS MATERIALIZED (
    SELECT m.project_id FROM project_members m
    WHERE m.project_id = (SELECT id FROM place) AND m.user_id = :owner_id AND m.role <> 'reader'
    FOR KEY SHARE),
changed AS (
    INSERT INTO chats (id, owner_id, root_chat_id, parent_chat_id, title, model_config_id,
        reasoning_effort, model_required, labels, workspace_id, mode, client_tools,
        max_cost_micros, mcp_server_ids, project_id, status, snapshot_version, history_version,
        attempt, next_message_id, pending_calls, turn_message_id, turn_no, run_no, worker_id, epoch,
        runnable_at, recent_changes)
    SELECT :chat_id::uuid, :owner_id, :root_chat_id::uuid, :parent_chat_id::uuid, :title,
        :model_config_id, :reasoning_effort, :model_required, :labels, coalesce(:workspace_id::uuid,
            (SELECT f.workspace_id FROM family f WHERE f.id = :parent_chat_id)),
        :mode, :client_tools,
        :max_cost_micros, coalesce(:mcp_server_ids::uuid[],
            (SELECT f.mcp_server_ids FROM family f WHERE f.id = :parent_chat_id)),
        coalesce((SELECT f.project_id FROM family f WHERE f.id = :root_chat_id),
            (SELECT project_id FROM member)),
        :status::text, 1, :history_version, :attempt,
        :next_message_id, :pending_calls, :turn_message_id, 1, (:worker_id::uuid IS NOT NULL)::int,
        :worker_id::uuid, :epoch,
        CASE WHEN :worker_id::uuid IS NULL THEN now() END, ARRAY[:change_id::bigint]
    WHERE CASE WHEN :parent_chat_id IS NULL
        THEN :project_id::uuid IS NULL OR EXISTS (SELECT FROM member)
        ELSE (SELECT count(*) FROM family)
            = CASE WHEN :parent_chat_id = :root_chat_id THEN 1 ELSE 2 END END
    ON CONFLICT (id) DO NOTHING
    RETURNING *),
bound AS (
    INSERT INTO chat_bindings (chat_id, workspace_id, build_id, agent_id)
    SELECT c.id, b.workspace_id, b.build_id, b.agent_id
    FROM changed c JOIN chat_bindings b
        ON b.chat_id = c.parent_chat_id AND b.workspace_id = c.workspace_id),
"""

# A root chat outside any project, by which nothing is inherited and no row is locked.
_CREATED_ROOT: Final = """
WITH changed AS (
    INSERT INTO chats (id, owner_id, root_chat_id, title, model_config_id, reasoning_effort,
        model_required, labels, workspace_id, mode, client_tools, max_cost_micros, mcp_server_ids,
        status, snapshot_version, history_version, attempt, next_message_id, pending_calls,
        turn_message_id, turn_no, run_no, worker_id, epoch, runnable_at, recent_changes)
    VALUES (:chat_id, :owner_id, :chat_id, :title, :model_config_id, :reasoning_effort,
        :model_required, :labels, :workspace_id, :mode, :client_tools, :max_cost_micros,
        :mcp_server_ids, :status, 1, :history_version, :attempt, :next_message_id, :pending_calls,
        :turn_message_id, 1, (:worker_id::uuid IS NOT NULL)::int, :worker_id::uuid, :epoch,
        CASE WHEN :worker_id::uuid IS NULL THEN now() END, ARRAY[:change_id::bigint])
    ON CONFLICT (id) DO NOTHING
    RETURNING *),
"""

_APPENDED: Final = """
appended AS (
    INSERT INTO chat_messages (chat_id, root_chat_id, revision, id, role, visibility, content,
        content_version, compressed, model_config_id, reasoning_effort, created_by, usage,
        cost_micros, runtime_ms, provider_response_id, finish_reason, change_id)
    SELECT c.id, c.root_chat_id, c.snapshot_version, m.id, m.role, m.visibility, m.content::json,
        m.content_version, m.compressed, m.model_config_id, m.reasoning_effort, m.created_by,
        m.usage::json, m.cost_micros, m.runtime_ms, m.provider_response_id,
        m.finish_reason, c.recent_changes[1]
    FROM changed c, """

_ONE_MESSAGE: Final = """(SELECT :message_id::bigint, :role::text, :visibility::text,
        :content::text, :content_version::smallint, :compressed::boolean, :model::uuid,
        :effort::text, :author::uuid, :usage::text, :cost::bigint, :runtime::bigint,
        :response_id::text, :finish_reason::text)"""

# The same parameters as arrays, for any number of messages.
_MESSAGES: Final = """unnest(:message_id::bigint[], :role::text[], :visibility::text[],
        :content::text[], :content_version::smallint[], :compressed::boolean[], :model::uuid[],
        :effort::text[], :author::uuid[], :usage::text[], :cost::bigint[], :runtime::bigint[],
        :response_id::text[], :finish_reason::text[])"""

_AS_ROWS: Final = """
        AS m (id, role, visibility, content, content_version, compressed, model_config_id,
            reasoning_effort, created_by, usage, cost_micros, runtime_ms, provider_response_id,
            finish_reason))"""

_PAID: Final = f"""{_AS_ROWS},
paid AS (
    INSERT INTO usage_events (at, owner_id, chat_id, root_chat_id, message_id, kind,
        model_config_id, provider, model, input_tokens, output_tokens, reasoning_tokens,
        cache_creation_tokens, cache_read_tokens, cost_micros, price, runtime_ms, ok,
        web_searches, estimated, call_id)
    SELECT greatest(now(), (SELECT until FROM usage_rolled_up)), c.owner_id, c.id,
        c.root_chat_id, u.message_id, u.kind, u.model_config_id, u.provider, u.model,
        u.input_tokens, u.output_tokens, u.reasoning_tokens, u.cache_creation_tokens,
        u.cache_read_tokens, u.cost_micros, u.price::json, u.runtime_ms, u.ok,
        u.web_searches, u.estimated, u.call_id
    FROM changed c, """

_ONE_CALL: Final = """(SELECT :paid_message_id::bigint, :paid_kind::text, :paid_model_id::uuid,
        :paid_provider::text, :paid_model::text, :input_tokens::bigint, :output_tokens::bigint,
        :reasoning_tokens::bigint, :cache_creation_tokens::bigint, :cache_read_tokens::bigint,
        :paid_micros::bigint, :price::text, :paid_runtime::bigint, :paid_ok::boolean,
        :web_searches::integer, :estimated::boolean, :call_id::uuid
        WHERE :paid_kind IS NOT NULL)
        AS u (message_id, kind, model_config_id, provider, model, input_tokens, output_tokens,
            reasoning_tokens, cache_creation_tokens, cache_read_tokens, cost_micros, price,
            runtime_ms, ok, web_searches, estimated, call_id)"""

_CALLS: Final = """json_to_recordset(:paid::json) AS u (message_id bigint, kind text,
        model_config_id uuid, provider text, model text, input_tokens bigint,
        output_tokens bigint, reasoning_tokens bigint, cache_creation_tokens bigint,
        cache_read_tokens bigint, cost_micros bigint, price json, runtime_ms bigint, ok boolean,
        web_searches integer, estimated boolean, call_id uuid)"""

# A call that another worker has recorded as an estimate must not refuse the commit. A call with a
# usage event is not open any more.
_PAID_ONCE: Final = "ON CONFLICT (call_id) WHERE call_id IS NOT NULL DO NOTHING),"
_CLOSED_ONE: Final = """
closed AS (
    DELETE FROM open_calls o USING changed c WHERE o.call_id = :call_id::uuid)
"""
_CLOSED: Final = """
closed AS (
    DELETE FROM open_calls o USING changed c
    WHERE o.call_id IN (SELECT (u ->> 'call_id')::uuid FROM json_array_elements(:paid::json) u))
"""

_REQUESTED: Final = """,
requested AS (
    INSERT INTO chat_requests (scope, request_id, chat_id, op, fingerprint, version, message_id,
        queue_id)
    SELECT :scope, :request_id, c.id, :op, :fingerprint, c.snapshot_version,
        :request_message_id::bigint, :request_queue_id::bigint
    FROM changed c WHERE :request_id::uuid IS NOT NULL)
"""

# The foreign key refuses a file that has been deleted: then nothing is written.
_LINKED: Final = """,
linked AS (
    INSERT INTO chat_files (chat_id, file_id)
    SELECT c.id, f.id FROM changed c, unnest(:file_ids::uuid[]) AS f (id)
    ON CONFLICT DO NOTHING)
"""

# Who answered which calls, and what the chat need not ask for any more. A rule is of the whole
# tree; one that is there already moves to the end, where it counts.
_ANSWERED: Final = """,
answered AS (
    INSERT INTO chat_call_answers (chat_id, tool_call_id, version, decision, answered_by)
    SELECT c.id, a.id, c.snapshot_version, a.decision, a.by
    FROM changed c, unnest(:answer_ids::text[], :answer_decisions::text[], :answerers::uuid[])
        AS a (id, decision, by))
"""
_RULED: Final = """,
ruled AS (
    INSERT INTO tool_policies AS p (chat_id, policy, updated_by)
    SELECT c.root_chat_id, jsonb_build_object('rules', :new_rules::jsonb), c.owner_id
    FROM changed c WHERE :new_rules::jsonb IS NOT NULL
    ON CONFLICT (chat_id) DO UPDATE SET
        policy = jsonb_set(p.policy, '{rules}', coalesce((
                SELECT jsonb_agg(o ORDER BY place)
                FROM jsonb_array_elements(p.policy -> 'rules') WITH ORDINALITY AS old (o, place)
                WHERE o NOT IN (SELECT jsonb_array_elements(excluded.policy -> 'rules'))), '[]')
            || (excluded.policy -> 'rules')),
        version = p.version + 1, updated_at = now(), updated_by = excluded.updated_by)
"""

# The end of a turn, for the owner's webhooks. Subagents belong to their root's turn, unless a
# person must answer. While a queued message goes on, browsers are not told: another end follows.
# Nor are they told of chats that are not listed. The lock leaves out a webhook that is being
# deleted: its foreign key would refuse the whole commit.
_WEBHOOK_EVENTS: Final = """,
told AS (
    INSERT INTO webhook_deliveries (webhook_id, event, chat_id, version, title, labels, error,
        action, more)
    SELECT w.id, :event::text, c.id, c.snapshot_version, c.title, c.labels, c.last_error,
        :action::json, c.status IN ('running', 'interrupting')
    FROM changed c JOIN webhooks w ON w.owner_id = c.owner_id
    WHERE :event::text IS NOT NULL
      AND (c.parent_chat_id IS NULL OR :event::text = 'turn.needs_action')
      AND w.enabled AND :event::text = ANY (w.events)
      AND (w.kind <> 'push'
           OR (c.status NOT IN ('running', 'interrupting')
               AND (:event::text = 'turn.needs_action'
                    OR NOT c.labels @> '{"chatd/listed": "no"}')))
    FOR KEY SHARE OF w SKIP LOCKED)
"""

# Filters by :chat_id, because the planner does not know the id of the row in `changed`. The join
# only decides whether anything is written.
_QUEUE: Final = """
, promoted AS (
    INSERT INTO chat_messages (chat_id, root_chat_id, revision, id, role, visibility, content,
        content_version, model_config_id, reasoning_effort, created_by, change_id)
    SELECT c.id, c.root_chat_id, c.snapshot_version, c.next_message_id - :promote + j.nth - 1,
        'user', 'both', j.content, j.content_version, j.model_config_id, j.reasoning_effort,
        j.created_by, c.recent_changes[1]
    FROM changed c, joining j
    RETURNING id, content, content_version, model_config_id, reasoning_effort, created_by),
dequeued AS (
    DELETE FROM chat_queued_messages q USING changed c
    WHERE q.chat_id = :chat_id
      AND (:clear_queue OR q.id = ANY (:dequeue::bigint[]) OR q.id IN (SELECT id FROM joining))),
enqueued AS (
    INSERT INTO chat_queued_messages (chat_id, root_chat_id, id, position, steer, content,
        content_version, model_config_id, reasoning_effort, mode, created_by)
    SELECT c.id, c.root_chat_id, :queue_id::bigint, :queue_id, :steer, :queue_content,
        :queue_content_version, :queue_model, :queue_effort, :queue_mode, :queue_author
    FROM changed c WHERE :queue_id IS NOT NULL),
rewritten AS (
    UPDATE chat_queued_messages q SET content = :rewrite_content,
        content_version = :queue_content_version,
        model_config_id = coalesce(:rewrite_model, q.model_config_id),
        reasoning_effort = coalesce(:rewrite_effort, q.reasoning_effort),
        mode = coalesce(:rewrite_mode, q.mode)
    FROM changed c WHERE q.chat_id = :chat_id AND q.id = :rewrite_id),
placed AS (
    UPDATE chat_queued_messages q SET position = p.position, steer = p.steer
    FROM changed c, unnest(:place_ids::bigint[], :positions::bigint[], :steers::boolean[])
        AS p (id, position, steer)
    WHERE q.chat_id = :chat_id AND q.id = p.id)
"""

# A line of messages is replaced by another one: by a new one, which begins with the message
# `shown_id`, or by one that was replaced earlier. Both are versions of the same message, which are
# known by the id of the first.
_LINES: Final = """
, forgotten AS (
    UPDATE chat_messages m SET deleted = true, deleted_at = now(),
        revision = c.snapshot_version, change_id = c.recent_changes[1]
    FROM changed c
    WHERE m.chat_id = :chat_id AND m.id >= :delete_from AND NOT m.deleted
    RETURNING m.id),
restored AS (
    UPDATE chat_messages m SET deleted = false, deleted_at = NULL,
        revision = c.snapshot_version, change_id = c.recent_changes[1]
    FROM changed c
    WHERE m.chat_id = :chat_id AND m.id = ANY (:restore_ids::bigint[]) AND m.deleted),
versions AS (
    INSERT INTO chat_message_versions (chat_id, message_id, group_id, hidden, line_end)
    SELECT c.id, v.message_id, coalesce((SELECT e.group_id FROM chat_message_versions e
            WHERE e.chat_id = :chat_id AND e.message_id = :delete_from), :delete_from),
        v.hidden, v.line_end
    FROM changed c, (VALUES
        (:delete_from::bigint, ARRAY(SELECT f.id FROM forgotten f ORDER BY f.id),
            :line_end::jsonb),
        (:shown_id::bigint, NULL, NULL)) AS v (message_id, hidden, line_end)
    ON CONFLICT (chat_id, message_id) DO UPDATE SET
        hidden = excluded.hidden, line_end = excluded.line_end)
"""

_RUNS: Final = f""",
{END_RUN},
{BEGIN_RUN}
"""
_FIRST_RUN: Final = f""",
{BEGIN_RUN}
"""
_ONLY_RUN: Final = f""",
{BEGIN_FIRST_RUN}
"""
RUN_NAMES: Final = (
    "run_begins",
    "run_outcome",
    "run_end_message_id",
    "run_detail",
    "lost",
    "takes_over",
)

# A timestamp costs the driver as much as ten other values. created_at and updated_at are known: the
# ones from before, or `written_at`.
_RESULT: Final = """
SELECT id, worker_id, title, labels, pin_order, workspace_id, mode, mcp_server_ids, project_id,
    diff_status,
    model_config_id, reasoning_effort, model_required, runnable_at, action_deadline,
    interrupt_deadline, now() AS written_at, takeover
"""

# For calls that run at once, and for the tools that a new chat's model is offered: the policies in
# the statement's snapshot, which saves a read. The rules of a new chat are not in it.
_LAYERS: Final = f"""
    , (SELECT json_agg(l) FROM (
        {layers_of("changed.root_chat_id", "changed.owner_id", "changed.workspace_id")}
    ) l) AS layers
"""

_NOTHING_MORE: Final = ", NULL AS promoted, NULL AS forgotten FROM changed"
_WRITTEN: Final = (_APPENDED, _MESSAGES, _PAID, _CALLS, _PAID_ONCE, _CLOSED, _REQUESTED, _LINKED)
_WRITTEN_BY_STEP: Final = (_APPENDED, _ONE_MESSAGE, _PAID, _ONE_CALL, _PAID_ONCE, _CLOSED_ONE)
_STEP_NAMES: Final = (*ROW_NAMES, "expected", "expected_change", *MESSAGE_NAMES, *CALL_NAMES)

_WRITTEN_WITH_QUEUE: Final = (
    _JOINING,
    _ROW,
    _RUN_COLUMNS,
    _CHANGED_WITH_QUEUE,
    *_WRITTEN,
    _ANSWERED,
    _RULED,
    _WEBHOOK_EVENTS,
    _RUNS,
    _QUEUE,
)
_PROMOTED: Final = ", (SELECT json_agg(p) FROM promoted p) AS promoted"

APPLY: Final = named_statement(
    *_WRITTEN_WITH_QUEUE,
    _RESULT,
    _PROMOTED,
    ", NULL AS forgotten FROM changed",
)
"""Any change to a chat that exists, if it leaves the earlier messages."""

APPLY_TO_LINES: Final = named_statement(
    *_WRITTEN_WITH_QUEUE,
    _LINES,
    _RESULT,
    _PROMOTED,
    ", (SELECT array_agg(f.id ORDER BY f.id) FROM forgotten f) AS forgotten FROM changed",
)
"""A change that replaces messages by others: an edit, or the choice of a version."""

APPLY_WITHOUT_QUEUE: Final = named_statement(
    "WITH",
    _ROW,
    _RUN_COLUMNS,
    _MODE,
    _CHANGED,
    *_WRITTEN,
    _ANSWERED,
    _RULED,
    _WEBHOOK_EVENTS,
    _RUNS,
    _RESULT,
    _NOTHING_MORE,
)
"""A change that does not touch the queue or earlier messages."""

APPLY_STEP: Final = named_statement(
    "WITH",
    _ROW,
    _CHANGED,
    *_WRITTEN_BY_STEP,
    _RESULT,
    _NOTHING_MORE,
    order=_STEP_NAMES,
)
"""Such a change with one message and at most one usage entry, inside an attempt: most steps."""

APPLY_CALLS: Final = named_statement(
    "WITH",
    _ROW,
    _CHANGED,
    *_WRITTEN_BY_STEP,
    _RESULT,
    _LAYERS,
    _NOTHING_MORE,
    order=_STEP_NAMES,
)
"""The same, with calls that are pending after it."""

APPLY_LAST_STEP: Final = named_statement(
    "WITH",
    _ROW,
    _RUN_COLUMNS,
    _CHANGED,
    *_WRITTEN_BY_STEP,
    _WEBHOOK_EVENTS,
    _RUNS,
    _RESULT,
    _NOTHING_MORE,
    order=(*_STEP_NAMES, "event", "action", *RUN_NAMES),
)
"""The same at the end of a turn, which webhooks are told, and where an attempt begins or ends."""

INSERT_CHAT: Final = named_statement(
    _CREATED, *_WRITTEN, _RULED, _FIRST_RUN, _RESULT, _LAYERS, _NOTHING_MORE
)
"""A new chat of any kind."""

INSERT_ROOT_CHAT: Final = named_statement(
    _CREATED_ROOT,
    _APPENDED,
    _ONE_MESSAGE,
    _AS_ROWS,
    _ONLY_RUN,
    _RESULT,
    _LAYERS,
    _NOTHING_MORE,
)
"""A root chat with its first message and nothing else: most new chats."""

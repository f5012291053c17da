-- Workers, chats, their messages and queues, what was paid, and the journal of live parts.
--
-- Message content is `json`, not `jsonb`: it comes back byte for byte (a provider's prompt
-- cache and signatures depend on it) and may hold \u0000, which jsonb refuses. Statuses and
-- roles are text with a CHECK: an enum costs the driver a catalogue query per connection and
-- cannot be narrowed in a rolling deploy.

CREATE TABLE chat_workers (
    worker_id   uuid PRIMARY KEY,
    lock_key    bigint NOT NULL,
    started_at  timestamptz NOT NULL DEFAULT now(),
    renewed_at  timestamptz NOT NULL DEFAULT now(),
    lease_until timestamptz NOT NULL,
    draining    boolean NOT NULL DEFAULT false
) WITH (fillfactor = 50);

CREATE TABLE chats (
    id                   uuid PRIMARY KEY,
    owner_id             uuid NOT NULL,
    root_chat_id         uuid NOT NULL REFERENCES chats (id) ON DELETE CASCADE
                         DEFERRABLE INITIALLY DEFERRED,
    parent_chat_id       uuid REFERENCES chats (id) ON DELETE CASCADE,

    title                text NOT NULL,
    model_config_id      uuid,
    reasoning_effort     text,
    labels               jsonb NOT NULL DEFAULT '{}',
    pin_order            integer NOT NULL DEFAULT 0,
    last_read_message_id bigint,
    workspace_id         uuid,
    mode                 text,
    client_tools         json,
    created_at           timestamptz NOT NULL DEFAULT now(),
    updated_at           timestamptz NOT NULL DEFAULT now(),

    status               text NOT NULL,
    archived             boolean NOT NULL DEFAULT false,
    last_error           json,
    snapshot_version     bigint NOT NULL,
    history_version      bigint NOT NULL,
    queue_version        bigint NOT NULL DEFAULT 0,
    retry_version        bigint NOT NULL DEFAULT 0,
    retry_state          json,
    attempt              integer NOT NULL DEFAULT 0,
    next_message_id      bigint NOT NULL DEFAULT 1,
    next_queue_id        bigint NOT NULL DEFAULT 1,
    queue_len            smallint NOT NULL DEFAULT 0,
    steer_len            smallint NOT NULL DEFAULT 0,
    pending_calls        json NOT NULL DEFAULT '[]',
    turn_message_id      bigint,
    compaction_requested boolean NOT NULL DEFAULT false,
    worker_id            uuid,
    epoch                bigint NOT NULL DEFAULT 0,
    orphan_count         smallint NOT NULL DEFAULT 0,
    runnable_at          timestamptz,
    action_deadline      timestamptz,
    interrupt_deadline   timestamptz,
    recent_changes       bigint[] NOT NULL DEFAULT '{}',

    CONSTRAINT status_is_known
        CHECK (status IN ('waiting', 'running', 'interrupting', 'requires_action', 'error')),
    CONSTRAINT no_queue_behind_an_idle_chat
        CHECK (status <> 'waiting' OR queue_len = 0 OR archived),
    CONSTRAINT archived_is_at_rest
        CHECK (NOT archived OR status IN ('waiting', 'error')),
    CONSTRAINT only_active_chats_are_owned
        CHECK (worker_id IS NULL OR status IN ('running', 'interrupting')),
    CONSTRAINT error_has_a_reason
        CHECK ((status = 'error') = (last_error IS NOT NULL)),
    CONSTRAINT action_has_a_deadline
        CHECK ((status = 'requires_action') = (action_deadline IS NOT NULL)),
    CONSTRAINT action_has_open_calls
        CHECK (status <> 'requires_action' OR json_array_length(pending_calls) > 0),
    CONSTRAINT interrupt_has_a_deadline
        CHECK ((status = 'interrupting') = (interrupt_deadline IS NOT NULL)),
    CONSTRAINT runnable_means_wanting_a_worker
        CHECK ((runnable_at IS NOT NULL)
               = (status IN ('running', 'interrupting') AND worker_id IS NULL)),
    CONSTRAINT rest_has_no_open_calls
        CHECK (status <> 'waiting' OR json_array_length(pending_calls) = 0),
    CONSTRAINT an_owner_is_at_an_attempt
        CHECK (worker_id IS NULL OR attempt > 0),
    CONSTRAINT retry_belongs_to_a_running_chat
        CHECK (retry_state IS NULL OR status IN ('running', 'interrupting')),
    CONSTRAINT compaction_belongs_to_an_active_chat
        CHECK (NOT compaction_requested OR status IN ('running', 'interrupting')),
    CONSTRAINT parts_are_not_newer_than_the_whole
        CHECK (history_version <= snapshot_version AND queue_version <= snapshot_version
               AND retry_version <= snapshot_version),
    CONSTRAINT queue_fits
        CHECK (queue_len BETWEEN 0 AND 20 AND steer_len BETWEEN 0 AND queue_len),
    CONSTRAINT counters_start_at_one
        CHECK (next_message_id >= 1 AND next_queue_id >= 1 AND epoch >= 0 AND attempt >= 0),
    CONSTRAINT only_live_roots_are_pinned
        CHECK (pin_order = 0 OR (pin_order > 0 AND parent_chat_id IS NULL AND NOT archived)),
    CONSTRAINT roots_are_their_own_root
        CHECK ((parent_chat_id IS NULL) = (root_chat_id = id))
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
-- The free space keeps step commits heap-only: none of the indexed columns change in one.

CREATE INDEX chats_runnable_roots ON chats ((status <> 'interrupting'), runnable_at, id)
    WHERE runnable_at IS NOT NULL AND parent_chat_id IS NULL;
CREATE INDEX chats_runnable_children ON chats ((status <> 'interrupting'), runnable_at, id)
    WHERE runnable_at IS NOT NULL AND parent_chat_id IS NOT NULL;
CREATE INDEX chats_by_worker ON chats (worker_id) WHERE worker_id IS NOT NULL;
CREATE INDEX chats_deadlines ON chats (LEAST(action_deadline, interrupt_deadline))
    WHERE action_deadline IS NOT NULL OR interrupt_deadline IS NOT NULL;
CREATE INDEX chats_list ON chats (owner_id, archived, updated_at DESC, id DESC)
    WHERE parent_chat_id IS NULL;
CREATE INDEX chats_pinned ON chats (owner_id, pin_order) WHERE pin_order > 0;
CREATE INDEX chats_family ON chats (root_chat_id, id);
CREATE INDEX chats_children ON chats (parent_chat_id) WHERE parent_chat_id IS NOT NULL;
CREATE INDEX chats_labels ON chats USING gin (labels jsonb_path_ops) WHERE labels <> '{}';

CREATE TABLE chat_messages (
    chat_id              uuid NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
    id                   bigint NOT NULL,
    root_chat_id         uuid NOT NULL,
    revision             bigint NOT NULL,
    role                 text NOT NULL CHECK (role IN ('system', 'user', 'assistant', 'tool')),
    visibility           text NOT NULL CHECK (visibility IN ('user', 'model', 'both')),
    content              json NOT NULL,
    content_version      smallint NOT NULL,
    compressed           boolean NOT NULL DEFAULT false,
    deleted              boolean NOT NULL DEFAULT false,
    model_config_id      uuid,
    reasoning_effort     text,
    created_by           uuid,
    usage                json,
    cost_micros          bigint CHECK (cost_micros >= 0),
    runtime_ms           bigint CHECK (runtime_ms >= 0),
    provider_response_id text,
    created_at           timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (chat_id, id)
);
CREATE INDEX chat_messages_changed ON chat_messages (chat_id, revision);
CREATE INDEX chat_messages_boundary ON chat_messages (chat_id, id DESC)
    WHERE compressed AND visibility = 'model' AND NOT deleted;

CREATE TABLE chat_queued_messages (
    chat_id          uuid NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
    id               bigint NOT NULL,
    root_chat_id     uuid NOT NULL,
    position         bigint NOT NULL,
    steer            boolean NOT NULL DEFAULT false,
    content          json NOT NULL,
    content_version  smallint NOT NULL,
    model_config_id  uuid,
    reasoning_effort text,
    created_by       uuid NOT NULL,
    created_at       timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (chat_id, id),
    UNIQUE (chat_id, position) DEFERRABLE INITIALLY IMMEDIATE
);

-- Idempotency keys. The scope is the chat, or the owner when a chat is created.
CREATE TABLE chat_requests (
    scope       uuid NOT NULL,
    request_id  uuid NOT NULL,
    chat_id     uuid NOT NULL REFERENCES chats (id) ON DELETE CASCADE
                DEFERRABLE INITIALLY DEFERRED,
    op          text NOT NULL,
    fingerprint text NOT NULL,
    version     bigint NOT NULL,
    message_id  bigint,
    queue_id    bigint,
    created_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (scope, request_id)
);
CREATE INDEX chat_requests_age ON chat_requests (created_at);
CREATE INDEX chat_requests_chat ON chat_requests (chat_id);

-- Tools that must not run twice leave a mark before they start.
CREATE TABLE chat_tool_runs (
    chat_id      uuid NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
    tool_call_id text NOT NULL,
    root_chat_id uuid NOT NULL,
    epoch        bigint NOT NULL,
    started_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (chat_id, tool_call_id)
);

-- One row per model call, never changed. Spend outlives the chat, so there is no reference.
CREATE TABLE usage_events (
    id                    bigint GENERATED ALWAYS AS IDENTITY,
    at                    timestamptz NOT NULL,
    owner_id              uuid NOT NULL,
    chat_id               uuid NOT NULL,
    root_chat_id          uuid NOT NULL,
    message_id            bigint,
    kind                  text NOT NULL,
    model_config_id       uuid,
    provider              text NOT NULL,
    model                 text NOT NULL,
    input_tokens          bigint NOT NULL,
    output_tokens         bigint NOT NULL,
    reasoning_tokens      bigint NOT NULL,
    cache_creation_tokens bigint NOT NULL,
    cache_read_tokens     bigint NOT NULL,
    cost_micros           bigint CHECK (cost_micros >= 0),
    price                 json,
    runtime_ms            bigint,
    ok                    boolean NOT NULL,
    PRIMARY KEY (id)
);
CREATE INDEX usage_events_owner ON usage_events (owner_id, at);
CREATE INDEX usage_events_at ON usage_events USING brin (at) WITH (pages_per_range = 16);
CREATE INDEX usage_events_family ON usage_events (root_chat_id);

CREATE TABLE usage_daily (
    owner_id              uuid NOT NULL,
    day                   date NOT NULL,
    provider              text NOT NULL,
    model                 text NOT NULL,
    calls                 bigint NOT NULL,
    unpriced_calls        bigint NOT NULL,
    input_tokens          bigint NOT NULL,
    output_tokens         bigint NOT NULL,
    reasoning_tokens      bigint NOT NULL,
    cache_creation_tokens bigint NOT NULL,
    cache_read_tokens     bigint NOT NULL,
    cost_micros           bigint NOT NULL,
    PRIMARY KEY (owner_id, day, provider, model)
);

-- Events before this time are in usage_daily, later ones are not.
CREATE TABLE usage_rolled_up (
    one   boolean PRIMARY KEY DEFAULT true CHECK (one),
    until timestamptz NOT NULL
);
INSERT INTO usage_rolled_up (until) VALUES ('epoch');

-- Live parts for viewers elsewhere. A ring of slots, each emptied whole when its time is over;
-- unlogged, because nothing but a preview is lost with it.
CREATE TABLE chat_journal (
    slot            smallint NOT NULL,
    chat_id         uuid NOT NULL,
    history_version bigint NOT NULL,
    attempt         integer NOT NULL,
    first_seq       integer NOT NULL,
    last_seq        integer NOT NULL,
    closed          boolean NOT NULL DEFAULT false,
    parts           bytea NOT NULL
) PARTITION BY LIST (slot);
CREATE UNLOGGED TABLE chat_journal_0 PARTITION OF chat_journal FOR VALUES IN (0);
CREATE UNLOGGED TABLE chat_journal_1 PARTITION OF chat_journal FOR VALUES IN (1);
CREATE UNLOGGED TABLE chat_journal_2 PARTITION OF chat_journal FOR VALUES IN (2);
CREATE UNLOGGED TABLE chat_journal_3 PARTITION OF chat_journal FOR VALUES IN (3);
CREATE UNLOGGED TABLE chat_journal_4 PARTITION OF chat_journal FOR VALUES IN (4);
CREATE UNLOGGED TABLE chat_journal_5 PARTITION OF chat_journal FOR VALUES IN (5);
CREATE INDEX chat_journal_episode
    ON chat_journal (chat_id, history_version, attempt, first_seq);

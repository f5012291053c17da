-- The data model of chatd, top to bottom:
--
--   Accounts         users, groups, credentials
--   Sealed secrets   which keys have sealed the secrets below
--   Workers          the processes that run chats
--   Models           providers, their keys, models
--   MCP servers      servers, clients, tokens, lists of tools
--   Chats            the row that decides, and who may read it
--   Messages         history, queue, requests
--   Runs             attempts at turns, marks of tool calls
--   Journal          live parts of answers
--   Search           the index over titles and messages
--   Files            uploads and their bytes
--   Workspaces       templates, workspaces, builds, agents, and the chats that use them
--   Policies         which tool calls run; skills of users
--   Spend            model calls, daily sums, limits
--   Automation       webhooks, push, schedules
--   Settings, audit  what administrators change, and the record of it
--
-- Conventions. Message content is `json`, not `jsonb`: it comes back byte for byte (a provider's prompt
-- cache and signatures depend on it) and may hold \u0000, which jsonb refuses. Statuses, roles and kinds
-- are text with a CHECK: an enum costs the driver a catalogue query per connection and cannot be narrowed
-- in a rolling deploy. A constraint is named after the rule it keeps. A column `x_key_id` beside a sealed
-- column `x` is the id of the key that sealed it. Costs are in millionths of a US dollar (`micros`).


-- Accounts -------------------------------------------------------------------------------------------

-- People and service accounts. A deleted user keeps the row, because chats and the audit log name it.
CREATE TABLE users (
    id            uuid PRIMARY KEY,
    username      text NOT NULL,
    email         text,
    name          text NOT NULL DEFAULT '',
    avatar_url    text,
    role          text NOT NULL,
    status        text NOT NULL DEFAULT 'active',
    is_service    boolean NOT NULL DEFAULT false,
    password_hash text,
    created_at    timestamptz NOT NULL DEFAULT now(),
    updated_at    timestamptz NOT NULL DEFAULT now(),
    last_seen_at  timestamptz,
    deleted_at    timestamptz,

    CONSTRAINT role_is_known CHECK (role IN ('admin', 'member', 'viewer')),
    CONSTRAINT user_status_is_known CHECK (status IN ('active', 'suspended')),
    CONSTRAINT service_accounts_have_no_password CHECK (NOT is_service OR password_hash IS NULL)
);
CREATE UNIQUE INDEX users_by_username ON users (lower(username)) WHERE deleted_at IS NULL;
CREATE UNIQUE INDEX users_by_email ON users (lower(email))
    WHERE email IS NOT NULL AND deleted_at IS NULL;

-- The first administrator, whose token is in the data directory (`ADMIN_USER_ID` in domain/access/permissions.py).
INSERT INTO users (id, username, name, role)
VALUES ('c4a7d000-0000-4000-8000-000000000001', 'admin', 'Administrator', 'admin');

-- Groups of users, for shares of chats and for spend limits.
CREATE TABLE groups (
    id         uuid PRIMARY KEY,
    name       text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX groups_by_name ON groups (lower(name));

CREATE TABLE group_members (
    user_id  uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    group_id uuid NOT NULL REFERENCES groups (id) ON DELETE CASCADE,
    added_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (user_id, group_id)
);
CREATE INDEX group_members_by_group ON group_members (group_id, user_id);

-- How an OpenID provider names a user.
CREATE TABLE user_identities (
    issuer     text NOT NULL,
    subject    text NOT NULL,
    user_id    uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    email      text,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (issuer, subject)
);
CREATE INDEX user_identities_by_user ON user_identities (user_id);

-- Browser sessions, API tokens, one-time sign-in links and one-time tickets for streams. Only a digest
-- of the secret is stored. A revoked credential is deleted. `scopes` is NULL for all scopes.
CREATE TABLE credentials (
    id            uuid PRIMARY KEY,
    kind          text NOT NULL,
    user_id       uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    name          text NOT NULL DEFAULT '',
    secret_sha256 bytea NOT NULL,
    scopes        text[],
    created_at    timestamptz NOT NULL DEFAULT now(),
    expires_at    timestamptz,
    ends_at       timestamptz,
    last_used_at  timestamptz,
    ip            text,
    user_agent    text,
    created_by    uuid,
    parent_id     uuid REFERENCES credentials (id) ON DELETE CASCADE,

    CONSTRAINT credential_kind_is_known CHECK (kind IN ('session', 'token', 'link', 'ticket')),
    CONSTRAINT only_tokens_last_for_ever CHECK (kind = 'token' OR expires_at IS NOT NULL)
);
COMMENT ON COLUMN credentials.expires_at IS 'of a session: moves with its use, at most to ends_at';
COMMENT ON COLUMN credentials.parent_id IS 'of a ticket: the credential that asked for it';
CREATE UNIQUE INDEX credentials_by_secret ON credentials (secret_sha256);
CREATE INDEX credentials_by_user ON credentials (user_id, kind, created_at);
CREATE INDEX credentials_by_expiry ON credentials (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX credentials_by_parent ON credentials (parent_id) WHERE parent_id IS NOT NULL;

-- Failed sign-ins as token buckets that all replicas share, one per account and one per address.
CREATE TABLE sign_in_attempts (
    bucket     text PRIMARY KEY,
    tokens     double precision NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX sign_in_attempts_age ON sign_in_attempts (updated_at);


-- Sealed secrets -------------------------------------------------------------------------------------

-- The keys that have sealed secrets in this database, without the keys themselves. The generated column
-- `x_key_id` of a sealed column references this table: a key that a value uses cannot be removed, and a
-- value cannot be sealed with a removed key. `staged`: a key that the running processes are about to get;
-- `current`: seals; `retired`: only opens.
CREATE TABLE secret_keys (
    id          text PRIMARY KEY,
    check_value text NOT NULL,
    state       text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),

    CONSTRAINT secret_key_state_is_known CHECK (state IN ('staged', 'current', 'retired'))
);
CREATE UNIQUE INDEX secret_keys_one_current ON secret_keys (state) WHERE state = 'current';

-- The keys that each running process holds: a staged key becomes the current one when all have it.
CREATE TABLE secret_key_holders (
    process_id uuid PRIMARY KEY,
    name       text NOT NULL,
    key_ids    text[] NOT NULL,
    renewed_at timestamptz NOT NULL DEFAULT now()
);

-- Keys that all replicas share, such as the one that signs download links.
CREATE TABLE shared_keys (
    name       text PRIMARY KEY,
    secret     bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now());

-- Tokens with which chatd asks a git host about the pull requests of a user's branches.
CREATE TABLE git_credentials (
    id                  uuid PRIMARY KEY,
    owner_id            uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    host                text NOT NULL,
    kind                text NOT NULL,
    api_url             text NOT NULL,
    sealed_token        text NOT NULL,
    sealed_token_key_id text GENERATED ALWAYS AS (split_part(sealed_token, '.', 2)) STORED NOT NULL
        REFERENCES secret_keys (id),
    created_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at          timestamptz NOT NULL DEFAULT clock_timestamp(),

    CONSTRAINT one_git_credential_per_host UNIQUE (owner_id, host)
);
CREATE INDEX git_credentials_sealed_by ON git_credentials (sealed_token_key_id, id);


-- Workers --------------------------------------------------------------------------------------------

-- The running workers and their leases. A worker renews its one row; other workers reap its chats when
-- the lease is stale or the advisory lock `lock_key` is gone.
CREATE TABLE chat_workers (
    worker_id   uuid PRIMARY KEY,
    lock_key    bigint NOT NULL,
    host        text NOT NULL DEFAULT '',
    version     text NOT NULL DEFAULT '',
    slots       integer NOT NULL DEFAULT 0,
    child_slots integer NOT NULL DEFAULT 0,
    started_at  timestamptz NOT NULL DEFAULT now(),
    renewed_at  timestamptz NOT NULL DEFAULT now(),
    lease_until timestamptz NOT NULL,
    draining    boolean NOT NULL DEFAULT false
) WITH (fillfactor = 50);

-- Workers that have ended, so that the record of runs can name their hosts.
CREATE TABLE former_workers (
    worker_id  uuid PRIMARY KEY,
    host       text NOT NULL,
    version    text NOT NULL,
    started_at timestamptz NOT NULL,
    renewed_at timestamptz NOT NULL,
    deleted_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX former_workers_by_time ON former_workers (deleted_at);


-- Models ---------------------------------------------------------------------------------------------

-- Providers from the settings, from the environment, and from administrators (`source`). What the settings
-- declare is written at each start; what they no longer declare is disabled and stays, because chats and
-- usage name it.
CREATE TABLE providers (
    id          uuid PRIMARY KEY,
    name        text NOT NULL UNIQUE,
    kind        text NOT NULL,
    base_url    text,
    has_api_key boolean NOT NULL,
    enabled     boolean NOT NULL,
    source      text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    updated_at  timestamptz NOT NULL DEFAULT now(),

    CONSTRAINT provider_source_is_known CHECK (source IN ('settings', 'environment', 'database'))
);

-- What an administrator configured for a provider. `config` is what the API may show; `sealed_config` has
-- headers, the proxy and AWS credentials. `user_keys`: users may enter keys of their own.
CREATE TABLE provider_details (
    id                   uuid PRIMARY KEY REFERENCES providers (id) ON DELETE CASCADE,
    display_name         text NOT NULL,
    config               json NOT NULL,
    sealed_config        text,
    sealed_config_key_id text GENERATED ALWAYS AS (split_part(sealed_config, '.', 2)) STORED
        REFERENCES secret_keys (id),
    user_keys            boolean NOT NULL,
    deleted_at           timestamptz
);

-- API keys of providers. Without a `user_id` the key is for all users. `destination` is where the key may
-- be sent: scheme, host and port of the provider's address, or `vendor`. A key with an empty destination
-- is sent nowhere and must be entered again.
CREATE TABLE provider_keys (
    id                uuid PRIMARY KEY,
    provider_id       uuid NOT NULL REFERENCES providers (id) ON DELETE CASCADE,
    user_id           uuid REFERENCES users (id) ON DELETE CASCADE,
    name              text NOT NULL,
    masked            text NOT NULL,
    sealed_key        text NOT NULL,
    sealed_key_key_id text GENERATED ALWAYS AS (split_part(sealed_key, '.', 2)) STORED NOT NULL
        REFERENCES secret_keys (id),
    destination       text NOT NULL DEFAULT '',
    created_at        timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX provider_keys_by_provider ON provider_keys (provider_id, created_at)
    WHERE user_id IS NULL;
CREATE UNIQUE INDEX provider_keys_one_per_user ON provider_keys (user_id, provider_id)
    WHERE user_id IS NOT NULL;
CREATE INDEX provider_keys_sealed_by ON provider_keys (sealed_key_key_id, id);

-- Models of providers. A deleted model keeps its row, because chats and usage name it; its name can be
-- used again. `position` orders them in lists; `reported` is what the provider says about the model.
-- `learned_limit` is the context window that the provider's refusals of long prompts have shown; with
-- `learned_is_bound` they named no number, and it is the size of the shortest refused prompt. A wrong one
-- keeps prompts so short that nothing refutes it, so it is forgotten some days after `learned_at`.
CREATE TABLE model_configs (
    id                   uuid PRIMARY KEY,
    name                 text NOT NULL,
    display_name         text,
    provider_id          uuid NOT NULL REFERENCES providers (id),
    model                text NOT NULL,
    position             integer NOT NULL,
    context_limit        integer,
    compaction_threshold smallint,
    prices               json,
    parameters           json NOT NULL,
    capabilities         json,
    reported             json,
    learned_limit        integer
        CONSTRAINT a_learned_limit_is_positive CHECK (learned_limit > 0),
    learned_is_bound     boolean NOT NULL DEFAULT false,
    learned_at           timestamptz,
    enabled              boolean NOT NULL,
    is_default           boolean NOT NULL,
    source               text NOT NULL,
    created_at           timestamptz NOT NULL DEFAULT now(),
    updated_at           timestamptz NOT NULL DEFAULT now(),
    deleted_at           timestamptz,

    CONSTRAINT model_source_is_known CHECK (source IN ('settings', 'environment', 'database')),
    CONSTRAINT a_default_can_be_used CHECK (enabled OR NOT is_default),
    CONSTRAINT a_deleted_model_is_disabled CHECK (deleted_at IS NULL OR NOT enabled)
);
CREATE UNIQUE INDEX model_configs_live_name ON model_configs (name) WHERE deleted_at IS NULL;
CREATE UNIQUE INDEX model_configs_one_default ON model_configs (is_default) WHERE is_default;
CREATE INDEX model_configs_by_provider ON model_configs (provider_id);

-- Which running process has which models in its settings. A model is enabled while any of them declares
-- it. `has_models` is false if the settings name no model: such a process has only the demo.
CREATE TABLE model_declarations (
    process_id    uuid PRIMARY KEY,
    providers     uuid[] NOT NULL,
    models        uuid[] NOT NULL,
    default_model uuid,
    has_models    boolean NOT NULL,
    declared_at   timestamptz NOT NULL DEFAULT now(),
    renewed_at    timestamptz NOT NULL DEFAULT now()
);

-- The models that do a task for all chats in place of the chat's own model: titles, compaction, and
-- subagents by their type, of which 0006 adds `computer_use`.
CREATE TABLE model_overrides (
    task            text PRIMARY KEY,
    model_config_id uuid NOT NULL REFERENCES model_configs (id),
    updated_at      timestamptz NOT NULL DEFAULT now(),

    CONSTRAINT override_task_is_known CHECK (task IN ('title', 'compaction', 'general', 'explore'))
);


-- MCP servers ----------------------------------------------------------------------------------------

-- Servers that administrators configured or that the settings declare. A deleted server keeps its row
-- without secrets: chats and stored tool calls name it.
CREATE TABLE mcp_servers (
    id                    uuid PRIMARY KEY,
    slug                  text NOT NULL,
    display_name          text NOT NULL,
    description           text NOT NULL DEFAULT '',
    url                   text NOT NULL,
    transport             text NOT NULL,
    auth                  text NOT NULL,
    enabled               boolean NOT NULL,
    availability          text NOT NULL,
    allow                 text[] NOT NULL DEFAULT '{}',
    deny                  text[] NOT NULL DEFAULT '{}',
    model_intent          boolean NOT NULL DEFAULT false,
    allow_in_plan_mode    boolean NOT NULL DEFAULT false,
    config                json NOT NULL,
    sealed_secrets        text,
    sealed_secrets_key_id text GENERATED ALWAYS AS (split_part(sealed_secrets, '.', 2)) STORED
        REFERENCES secret_keys (id),
    source                text NOT NULL DEFAULT 'database',
    version               bigint NOT NULL DEFAULT 1,
    created_at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    deleted_at            timestamptz,

    CONSTRAINT mcp_transport_is_known CHECK (transport IN ('streamable_http', 'sse')),
    CONSTRAINT mcp_auth_is_known CHECK (auth IN ('none', 'oauth2', 'api_key', 'custom_headers')),
    CONSTRAINT mcp_availability_is_known
        CHECK (availability IN ('force_on', 'default_on', 'default_off')),
    CONSTRAINT mcp_source_is_known CHECK (source IN ('database', 'settings')),
    CONSTRAINT a_deleted_mcp_server_has_no_secret
        CHECK (deleted_at IS NULL OR (sealed_secrets IS NULL AND NOT enabled))
);
COMMENT ON COLUMN mcp_servers.config IS 'what the API may show of the credentials: names, addresses';
CREATE UNIQUE INDEX mcp_servers_live_slug ON mcp_servers (slug) WHERE deleted_at IS NULL;

-- The clients that chatd registered at authorization servers, with the discovered addresses: one for each
-- address to which browsers come back.
CREATE TABLE mcp_registrations (
    id                   uuid PRIMARY KEY,
    server_id            uuid NOT NULL REFERENCES mcp_servers (id) ON DELETE CASCADE,
    redirect_uri         text NOT NULL,
    client               json NOT NULL,
    sealed_secret        text,
    sealed_secret_key_id text GENERATED ALWAYS AS (split_part(sealed_secret, '.', 2)) STORED
        REFERENCES secret_keys (id),
    created_at           timestamptz NOT NULL DEFAULT clock_timestamp(),

    CONSTRAINT one_mcp_registration UNIQUE (server_id, redirect_uri)
);

-- The tokens with which a user's chats use a server. Until `refreshing_until` one process is asking for
-- new tokens, and the others wait for its result.
CREATE TABLE mcp_tokens (
    id                   uuid PRIMARY KEY,
    server_id            uuid NOT NULL REFERENCES mcp_servers (id) ON DELETE CASCADE,
    user_id              uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    client               json NOT NULL,
    sealed_tokens        text,
    sealed_tokens_key_id text GENERATED ALWAYS AS (split_part(sealed_tokens, '.', 2)) STORED
        REFERENCES secret_keys (id),
    expires_at           timestamptz,
    failure              text,
    version              bigint NOT NULL DEFAULT 1,
    refreshing_until     timestamptz,
    created_at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at           timestamptz NOT NULL DEFAULT clock_timestamp(),

    CONSTRAINT one_mcp_token UNIQUE (user_id, server_id),
    CONSTRAINT mcp_tokens_or_failure CHECK ((sealed_tokens IS NULL) = (failure IS NOT NULL)),
    CONSTRAINT mcp_failure_is_short CHECK (char_length(failure) <= 400)
);
COMMENT ON COLUMN mcp_tokens.client IS 'the client and the addresses that these tokens belong to';
CREATE INDEX mcp_tokens_by_server ON mcp_tokens (server_id);

-- The tools that a server listed last, so that a chat keeps them while the server does not answer. A
-- server that users reach with tokens of their own has a list for each of them, others have one.
CREATE TABLE mcp_tool_lists (
    server_id      uuid NOT NULL REFERENCES mcp_servers (id) ON DELETE CASCADE,
    user_id        uuid REFERENCES users (id) ON DELETE CASCADE,
    server_version bigint NOT NULL,
    tools          bytea NOT NULL,
    updated_at     timestamptz NOT NULL DEFAULT clock_timestamp(),

    CONSTRAINT one_mcp_tool_list UNIQUE NULLS NOT DISTINCT (server_id, user_id)
);


-- Chats ----------------------------------------------------------------------------------------------

-- The row decides: it holds what should happen to a chat and which worker does it. Every change raises
-- `snapshot_version` by one and names itself in `recent_changes`; the other versions are the snapshot at
-- which that part last changed. A subagent is a chat with a parent; a root chat is its own root.
-- 0016 adds `project_id`, the project that a tree of chats belongs to.
CREATE TABLE chats (
    id                   uuid PRIMARY KEY,
    owner_id             uuid NOT NULL CONSTRAINT chats_have_an_owner REFERENCES users (id),
    root_chat_id         uuid NOT NULL REFERENCES chats (id) ON DELETE CASCADE
                         DEFERRABLE INITIALLY DEFERRED,
    parent_chat_id       uuid REFERENCES chats (id) ON DELETE CASCADE,
    -- Where a fork comes from. No reference: the source may be deleted.
    forked_from_chat_id    uuid,
    forked_from_message_id bigint,

    -- What its people chose.
    title                text NOT NULL,
    model_config_id      uuid,
    model_required       boolean NOT NULL DEFAULT false,  -- no other model answers if this one is removed
    reasoning_effort     text,
    mode                 text,
    labels               jsonb NOT NULL DEFAULT '{}',
    pin_order            integer NOT NULL DEFAULT 0,      -- 0: not pinned
    workspace_id         uuid,
    client_tools         json,
    mcp_server_ids       uuid[],                          -- NULL: the servers that are on by default
    max_cost_micros      bigint,                          -- the budget of a root and its subagents
    created_at           timestamptz NOT NULL DEFAULT now(),
    updated_at           timestamptz NOT NULL DEFAULT now(),
    archived             boolean NOT NULL DEFAULT false,
    deleted_at           timestamptz,                     -- invisible; a periodic task removes the tree

    -- What should happen.
    status               text NOT NULL,
    last_error           json,
    snapshot_version     bigint NOT NULL,
    history_version      bigint NOT NULL,
    queue_version        bigint NOT NULL DEFAULT 0,
    retry_version        bigint NOT NULL DEFAULT 0,
    recent_changes       bigint[] NOT NULL DEFAULT '{}',
    next_message_id      bigint NOT NULL DEFAULT 1,
    next_queue_id        bigint NOT NULL DEFAULT 1,
    queue_len            smallint NOT NULL DEFAULT 0,
    steer_len            smallint NOT NULL DEFAULT 0,
    queue_held           boolean NOT NULL DEFAULT false,  -- the interrupt in progress leaves the queue
    turn_no              bigint NOT NULL DEFAULT 0,
    turn_message_id      bigint,                          -- the message that began the turn
    plan_message_id      bigint,                          -- the proposed plan that waits for a decision
    pending_calls        json NOT NULL DEFAULT '[]',
    action_deadline      timestamptz,
    interrupt_deadline   timestamptz,
    compaction_requested boolean NOT NULL DEFAULT false,
    -- A turn that waits for subagents: the chats, and for how long. The chat runs without a worker, and
    -- `runnable_at` is the end of the wait; a subagent that ends its turn makes it runnable earlier.
    agent_wait           json,

    -- Who does it, and what went wrong so far.
    worker_id            uuid,
    epoch                bigint NOT NULL DEFAULT 0,       -- raised when the owner changes
    run_no               bigint NOT NULL DEFAULT 0,
    attempt              integer NOT NULL DEFAULT 0,
    retry_state          json,
    setbacks             json,                            -- since the history last changed
    orphan_count         smallint NOT NULL DEFAULT 0,     -- owners that died in this turn
    runnable_at          timestamptz,
    lost                 jsonb,                           -- from the owner's death to the next owner
    takeover             jsonb,                           -- the last one, which viewers are shown

    -- What the chat has changed in the repositories of its workspace, as last seen. It has no version.
    diff_status          jsonb,

    CONSTRAINT status_is_known
        CHECK (status IN ('waiting', 'running', 'interrupting', 'requires_action', 'error')),
    CONSTRAINT no_queue_behind_an_idle_chat
        CHECK (status <> 'waiting' OR queue_len = 0 OR archived),
    CONSTRAINT archived_is_at_rest
        CHECK (NOT archived OR status IN ('waiting', 'error')),
    CONSTRAINT deleted_is_archived
        CHECK (deleted_at IS NULL OR archived),
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
    CONSTRAINT only_an_interrupt_holds_the_queue
        CHECK (NOT queue_held OR status = 'interrupting'),
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
-- The free space keeps the commit of a step heap-only: it changes no indexed column.

-- For workers: what can be acquired (interrupts first), what a worker owns, what is overdue.
CREATE INDEX chats_runnable_roots ON chats ((status <> 'interrupting'), runnable_at, id)
    WHERE runnable_at IS NOT NULL AND parent_chat_id IS NULL;
CREATE INDEX chats_runnable_children ON chats ((status <> 'interrupting'), runnable_at, id)
    WHERE runnable_at IS NOT NULL AND parent_chat_id IS NOT NULL;
-- Chats whose workers died repeatedly: a worker acquires one of them at a time.
CREATE INDEX chats_suspects ON chats (runnable_at)
    WHERE runnable_at IS NOT NULL AND orphan_count > 1;
CREATE INDEX chats_by_worker ON chats (worker_id) WHERE worker_id IS NOT NULL;
CREATE INDEX chats_deadlines ON chats (LEAST(action_deadline, interrupt_deadline))
    WHERE action_deadline IS NOT NULL OR interrupt_deadline IS NOT NULL;

-- For lists. A list by a status that few chats have does not read the others.
CREATE INDEX chats_list ON chats (owner_id, archived, updated_at DESC, id DESC)
    WHERE parent_chat_id IS NULL;
CREATE INDEX chats_rare_statuses ON chats (owner_id, archived, status, updated_at DESC, id DESC)
    WHERE parent_chat_id IS NULL AND status <> 'waiting';
CREATE INDEX chats_pinned ON chats (owner_id, pin_order) WHERE pin_order > 0;
CREATE INDEX chats_labels ON chats USING gin (labels jsonb_path_ops) WHERE labels <> '{}';
CREATE INDEX chats_family ON chats (root_chat_id, id);
CREATE INDEX chats_children ON chats (parent_chat_id) WHERE parent_chat_id IS NOT NULL;
CREATE INDEX chats_workspace ON chats (workspace_id) WHERE workspace_id IS NOT NULL;

-- For periodic tasks: where the search index continues, what to archive, to remove, and was deleted.
-- `updated_at` changes at the start and at the end of a turn only.
CREATE INDEX chats_updated ON chats (updated_at);
CREATE INDEX chats_idle ON chats (updated_at) WHERE parent_chat_id IS NULL AND NOT archived;
CREATE INDEX chats_shelved ON chats (updated_at) WHERE parent_chat_id IS NULL AND archived;
CREATE INDEX chats_deleted ON chats (deleted_at)
    WHERE deleted_at IS NOT NULL AND parent_chat_id IS NULL;

-- The users and groups who may read a root chat and its subagents, in addition to its owner.
CREATE TABLE chat_shares (
    chat_id    uuid NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
    user_id    uuid REFERENCES users (id) ON DELETE CASCADE,
    group_id   uuid REFERENCES groups (id) ON DELETE CASCADE,
    created_by uuid,
    created_at timestamptz NOT NULL DEFAULT now(),

    CONSTRAINT shared_with_a_user_or_a_group CHECK (num_nonnulls(user_id, group_id) = 1)
);
CREATE UNIQUE INDEX chat_shares_users ON chat_shares (chat_id, user_id) WHERE user_id IS NOT NULL;
CREATE UNIQUE INDEX chat_shares_groups ON chat_shares (chat_id, group_id)
    WHERE group_id IS NOT NULL;
CREATE INDEX chat_shares_of_user ON chat_shares (user_id, chat_id) WHERE user_id IS NOT NULL;
CREATE INDEX chat_shares_of_group ON chat_shares (group_id, chat_id) WHERE group_id IS NOT NULL;
CREATE INDEX chat_shares_of_chat ON chat_shares (chat_id);

-- The last message that a user has read of a chat.
CREATE TABLE chat_read_marks (
    user_id    uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    chat_id    uuid NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
    message_id bigint NOT NULL,
    read_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (user_id, chat_id)
);
CREATE INDEX chat_read_marks_chat ON chat_read_marks (chat_id);

-- Title generations that users asked for. The next request takes over a row that is past `until`.
CREATE TABLE chat_title_leases (
    chat_id uuid PRIMARY KEY REFERENCES chats (id) ON DELETE CASCADE,
    id      uuid NOT NULL,
    until   timestamptz NOT NULL
);

-- The MCP servers whose tools a chat has had, in the order in which it got them: the tools of a new one
-- follow those that providers have cached. `servers` are ids, or names of the workspace's own servers.
CREATE TABLE chat_tool_orders (
    chat_id uuid PRIMARY KEY REFERENCES chats (id) ON DELETE CASCADE,
    servers text[] NOT NULL
);


-- Messages -------------------------------------------------------------------------------------------

-- The history of chats. Ids count from 1 in each chat. `revision` is the snapshot at which the message
-- last changed, and `change_id` that change: it shows whether a viewer that was away has seen this past of
-- the chat or one that the database lost in a failover. A deleted message keeps its row, from which
-- viewers that resume learn that it is gone; its content is removed some time after `deleted_at`, which
-- is then NULL again; until then `chat_message_versions` may lead back to it. `finish_reason` is why the
-- model's answer ended.
CREATE TABLE chat_messages (
    chat_id              uuid NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
    id                   bigint NOT NULL,
    root_chat_id         uuid NOT NULL,
    revision             bigint NOT NULL,
    change_id            bigint,
    role                 text NOT NULL CHECK (role IN ('system', 'user', 'assistant', 'tool')),
    visibility           text NOT NULL CHECK (visibility IN ('user', 'model', 'both')),
    content              json NOT NULL,
    content_version      smallint NOT NULL,
    compressed           boolean NOT NULL DEFAULT false,  -- the summary or the mark of a compaction
    deleted              boolean NOT NULL DEFAULT false,
    deleted_at           timestamptz,
    model_config_id      uuid,
    reasoning_effort     text,
    created_by           uuid,
    usage                json,
    cost_micros          bigint CHECK (cost_micros >= 0),
    runtime_ms           bigint CHECK (runtime_ms >= 0),
    provider_response_id text,
    finish_reason        text,
    created_at           timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (chat_id, id)
);
CREATE INDEX chat_messages_changed ON chat_messages (chat_id, revision);
-- The prompt of the model begins at the newest summary; it also needs the system messages before it.
CREATE INDEX chat_messages_boundary ON chat_messages (chat_id, id DESC)
    WHERE compressed AND visibility = 'model' AND NOT deleted;
CREATE INDEX chat_messages_system ON chat_messages (chat_id, id)
    WHERE role = 'system' AND NOT compressed AND NOT deleted;
-- The prompts of a user, newest first.
CREATE INDEX chat_messages_prompts ON chat_messages (created_by, created_at, chat_id, id)
    WHERE role = 'user' AND NOT deleted AND visibility <> 'model' AND NOT compressed;
CREATE INDEX chat_messages_deleted ON chat_messages (deleted_at) WHERE deleted_at IS NOT NULL;

-- Messages that wait for the end of a step (`steer`) or of the turn. `mode` is the mode that the chat gets
-- when the message joins its history: 'plan', 'off', or NULL for no change.
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
    mode             text,
    created_by       uuid NOT NULL,
    created_at       timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (chat_id, id),
    UNIQUE (chat_id, position) DEFERRABLE INITIALLY IMMEDIATE
);

-- Idempotency keys: a repeated request gets the result of the first. The scope is the chat, or the owner
-- when a chat is created.
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


-- Runs -----------------------------------------------------------------------------------------------

-- The attempts at the turns of a chat: which worker ran it, from when to when, and how it ended. The
-- statements that give a chat an owner and take it away write these rows; the newest 200 of a chat are
-- kept. `takeover` says how the death of the worker before was noticed.
CREATE TABLE chat_runs (
    chat_id          uuid NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
    run_no           bigint NOT NULL,
    turn_no          bigint NOT NULL,
    turn_message_id  bigint,
    epoch            bigint NOT NULL,
    attempt          integer NOT NULL,
    worker_id        uuid NOT NULL,
    started_at       timestamptz NOT NULL DEFAULT now(),
    first_message_id bigint NOT NULL,
    takeover         jsonb,
    ended_at         timestamptz,
    end_message_id   bigint,
    outcome          text,
    detail           json,
    PRIMARY KEY (chat_id, run_no)
);

-- A tool that must not run twice leaves a mark before it starts. `output` is kept from its end until the
-- results of its step are committed: a worker that takes the step over finds it instead of an unknown
-- outcome.
CREATE TABLE chat_tool_runs (
    chat_id      uuid NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
    tool_call_id text NOT NULL,
    root_chat_id uuid NOT NULL,
    epoch        bigint NOT NULL,
    started_at   timestamptz NOT NULL DEFAULT now(),
    output       text,
    PRIMARY KEY (chat_id, tool_call_id)
);
-- The few outputs whose step may not be committed, for the chat's next tool and for maintenance.
CREATE INDEX chat_tool_runs_kept ON chat_tool_runs (chat_id, started_at)
    WHERE output IS NOT NULL;

-- Who answered which call, so that the reply to a second answer can name the first.
CREATE TABLE chat_call_answers (
    chat_id      uuid NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
    tool_call_id text NOT NULL,
    version      bigint NOT NULL,
    decision     text NOT NULL,
    answered_by  uuid NOT NULL,
    answered_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (chat_id, tool_call_id, version)
);

-- Requests and answers of model calls, for debugging; written only where the settings enable it.
CREATE TABLE debug_calls (
    id              uuid PRIMARY KEY,
    chat_id         uuid NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
    kind            text NOT NULL,
    model_config_id uuid,
    provider        text NOT NULL,
    model           text NOT NULL,
    attempt         integer NOT NULL,
    history_version bigint NOT NULL,
    turn_message_id bigint,
    started_at      timestamptz NOT NULL,
    duration_ms     bigint NOT NULL,
    first_part_ms   bigint,
    error           text,
    error_kind      text,
    status_code     integer,
    finish_reason   text,
    usage           json,
    request         json NOT NULL,
    response        json NOT NULL,
    is_cut          boolean NOT NULL
);
CREATE INDEX debug_calls_of_chat ON debug_calls (chat_id, started_at DESC, id DESC);
CREATE INDEX debug_calls_by_time ON debug_calls (started_at);


-- Journal --------------------------------------------------------------------------------------------

-- Live parts of answers, for viewers on other replicas. A ring of slots, each emptied whole when its time
-- is over; unlogged, because nothing but a preview is lost with it.
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

-- What a worker that died or released its chat had said at the step in progress, as the next worker found
-- it. The journal forgets within the hour and when the database crashes; an outage of the provider can
-- last longer.
CREATE TABLE kept_answers (
    chat_id         uuid PRIMARY KEY REFERENCES chats ON DELETE CASCADE,
    history_version bigint NOT NULL,
    attempt         integer NOT NULL,
    parts           bytea NOT NULL
);


-- Search ---------------------------------------------------------------------------------------------

-- The text of titles (message 0) and messages as the search compares it, and the numbers of its pieces,
-- by which the index finds it. Filled behind the commits. Long texts and numbers are stored outside the
-- row, so that a search that finds many entries reads few pages.
CREATE TABLE chat_search_texts (
    chat_id      uuid NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
    message_id   bigint NOT NULL,
    root_chat_id uuid NOT NULL,
    owner_id     uuid NOT NULL,
    at           timestamptz NOT NULL,
    text         text COLLATE "C" NOT NULL,
    grams        integer[] NOT NULL,
    PRIMARY KEY (chat_id, message_id)
) WITH (toast_tuple_target = 128);
ALTER TABLE chat_search_texts ALTER COLUMN grams SET STORAGE EXTERNAL;
-- No list of pending entries: every search would read all of it.
CREATE INDEX chat_search_texts_grams ON chat_search_texts USING gin (grams) WITH (fastupdate = off);
CREATE INDEX chat_search_texts_newest ON chat_search_texts (root_chat_id, at, message_id);
CREATE INDEX chat_search_texts_of_owner ON chat_search_texts (owner_id, at);

-- What the index has of a chat: its changes up to `version`, of which those up to `message_id` if there
-- are more; and its title. A title of NULL asks for the title to be read again.
CREATE TABLE chat_search_state (
    chat_id    uuid PRIMARY KEY REFERENCES chats (id) ON DELETE CASCADE,
    version    bigint NOT NULL,
    message_id bigint,
    title      text
);
CREATE INDEX chat_search_state_renamed ON chat_search_state (chat_id) WHERE title IS NULL;

-- Chats that changed before `until` are in the index. After a release with a new index the older chats are
-- read newest first: those that changed at `left_until` or before are left. NULL: not begun. 'epoch': none.
CREATE TABLE chat_search_progress (
    one        boolean PRIMARY KEY DEFAULT true CHECK (one),
    until      timestamptz NOT NULL,
    left_until timestamptz
);
INSERT INTO chat_search_progress (until, left_until) VALUES ('epoch', 'epoch');


-- Files ----------------------------------------------------------------------------------------------

-- Files that users upload. A row exists only for a complete file, and never changes.
CREATE TABLE files (
    id          uuid PRIMARY KEY,
    owner_id    uuid NOT NULL,
    name        text,
    media_type  text NOT NULL,
    size_bytes  bigint NOT NULL,
    sha256      text NOT NULL,
    store       text NOT NULL,
    chunk_bytes integer NOT NULL,
    request_key text,
    created_at  timestamptz NOT NULL DEFAULT now(),

    CONSTRAINT files_have_bytes CHECK (size_bytes > 0 AND chunk_bytes > 0)
);
CREATE INDEX files_of_owner ON files (owner_id, created_at DESC, id DESC);
CREATE INDEX files_by_age ON files (created_at, id);
CREATE UNIQUE INDEX files_request ON files (request_key) WHERE request_key IS NOT NULL;

-- Bytes without a file: an upload in progress, one that broke off, or what a deleted file left.
-- Maintenance removes the bytes of old and of abandoned rows, then the row.
CREATE TABLE file_uploads (
    id          uuid PRIMARY KEY,
    owner_id    uuid NOT NULL,
    store       text NOT NULL,
    chunk_bytes integer NOT NULL,
    abandoned   boolean NOT NULL DEFAULT false,
    started_at  timestamptz NOT NULL DEFAULT now());
CREATE INDEX file_uploads_of_owner ON file_uploads (owner_id) WHERE NOT abandoned;
CREATE INDEX file_uploads_by_age ON file_uploads (started_at);

-- The bytes of files that the database stores. No reference to files: the first chunks are written before
-- the file exists. Images and PDFs are compressed already.
CREATE TABLE file_chunks (
    file_id uuid NOT NULL,
    number  integer NOT NULL,
    data    bytea NOT NULL,
    PRIMARY KEY (file_id, number));
ALTER TABLE file_chunks ALTER COLUMN data SET STORAGE EXTERNAL;

-- How much each user stores, for the limit.
CREATE TABLE file_totals (
    owner_id uuid PRIMARY KEY,
    files    bigint NOT NULL,
    bytes    bigint NOT NULL,

    CONSTRAINT file_totals_are_not_negative CHECK (files >= 0 AND bytes >= 0)
);

-- Which files the messages of a chat name, queued and deleted ones included. Written together with the
-- message. A file with a link cannot be deleted.
CREATE TABLE chat_files (
    chat_id   uuid NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
    file_id   uuid NOT NULL REFERENCES files (id),
    linked_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (chat_id, file_id));
CREATE INDEX chat_files_of_file ON chat_files (file_id);


-- Workspaces -----------------------------------------------------------------------------------------

-- What workspaces are made from. `users` and `groups` may create workspaces of it, by their names (users
-- also by their addresses); both empty: every user. `max_ttl_s` is how long a workspace may run even if it
-- is used; 0: without limit.
CREATE TABLE templates (
    id                     uuid PRIMARY KEY,
    name                   text NOT NULL,
    display_name           text NOT NULL DEFAULT '',
    description            text NOT NULL DEFAULT '',
    icon                   text NOT NULL DEFAULT '',
    backend                text NOT NULL,
    origin                 text NOT NULL DEFAULT 'user',
    active_version_id      uuid NOT NULL,
    agents_allowed         boolean NOT NULL DEFAULT true,
    users                  text[] NOT NULL DEFAULT '{}',
    groups                 text[] NOT NULL DEFAULT '{}',
    deprecated             boolean NOT NULL DEFAULT false,
    deleted                boolean NOT NULL DEFAULT false,
    default_ttl_s          integer NOT NULL DEFAULT 0,
    max_ttl_s              integer NOT NULL DEFAULT 0,
    activity_bump_s        integer NOT NULL DEFAULT 3600,
    require_active_version boolean NOT NULL DEFAULT false,
    created_at             timestamptz NOT NULL DEFAULT now(),
    updated_at             timestamptz NOT NULL DEFAULT now(),

    CONSTRAINT template_has_a_name
        CHECK (name ~ '^[A-Za-z0-9]+(-[A-Za-z0-9]+)*$' AND length(name) <= 32),
    CONSTRAINT template_comes_from_somewhere
        CHECK (origin IN ('builtin', 'settings', 'user')),
    CONSTRAINT template_times_are_not_negative
        CHECK (default_ttl_s >= 0 AND activity_bump_s >= 0),
    CONSTRAINT template_max_ttl_is_not_negative
        CHECK (max_ttl_s >= 0)
);
CREATE UNIQUE INDEX templates_name ON templates (lower(name)) WHERE NOT deleted;

-- The versions of a template; a build uses one of them.
CREATE TABLE template_versions (
    id                 uuid PRIMARY KEY,
    template_id        uuid NOT NULL REFERENCES templates (id) ON DELETE CASCADE,
    spec               json NOT NULL,
    readme             text NOT NULL DEFAULT '',
    has_external_agent boolean NOT NULL DEFAULT false,
    created_at         timestamptz NOT NULL DEFAULT now(),
    UNIQUE (template_id, id)
);
ALTER TABLE templates ADD CONSTRAINT template_has_its_version
    FOREIGN KEY (id, active_version_id) REFERENCES template_versions (template_id, id)
    DEFERRABLE INITIALLY DEFERRED;

-- What a version asks of the person or model that makes a workspace.
CREATE TABLE template_parameters (
    version_id   uuid NOT NULL REFERENCES template_versions (id) ON DELETE CASCADE,
    position     smallint NOT NULL,
    name         text NOT NULL CHECK (name <> ''),
    type         text NOT NULL CHECK (type IN ('string', 'number', 'bool', 'list(string)')),
    required     boolean NOT NULL,
    "default"    text,
    mutable      boolean NOT NULL,
    ephemeral    boolean NOT NULL,
    display_name text NOT NULL,
    description  text NOT NULL,
    form_type    text NOT NULL,
    options      json NOT NULL,
    regex        text NOT NULL,
    regex_error  text NOT NULL,
    min          float8,
    max          float8,
    PRIMARY KEY (version_id, position),
    UNIQUE (version_id, name),
    CONSTRAINT parameter_bounds_are_in_order CHECK (min IS NULL OR max IS NULL OR min <= max)
);

-- Workspaces of users. `number` names what a host makes for it. `made_by` is the request that asked for
-- it: made again, it finds the same workspace.
CREATE TABLE workspaces (
    id           uuid PRIMARY KEY,
    owner_id     uuid NOT NULL CONSTRAINT workspaces_have_an_owner REFERENCES users (id),
    template_id  uuid NOT NULL REFERENCES templates (id),
    name         text NOT NULL,
    number       bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
    host_id      text,
    ttl_s        integer NOT NULL DEFAULT 0 CHECK (ttl_s >= 0),
    last_used_at timestamptz NOT NULL DEFAULT now(),
    deleted      boolean NOT NULL DEFAULT false,
    latest_build integer NOT NULL DEFAULT 0 CHECK (latest_build >= 0),
    made_by      text,
    created_at   timestamptz NOT NULL DEFAULT now(),

    CONSTRAINT workspace_has_a_name
        CHECK (name ~ '^[A-Za-z0-9]+(-[A-Za-z0-9]+)*$' AND length(name) <= 32)
);
CREATE UNIQUE INDEX workspaces_name ON workspaces (owner_id, lower(name)) WHERE NOT deleted;
CREATE UNIQUE INDEX workspaces_made_by ON workspaces (made_by) WHERE made_by IS NOT NULL;
CREATE INDEX workspaces_template ON workspaces (template_id);
CREATE INDEX workspaces_host ON workspaces (host_id) WHERE NOT deleted;
CREATE INDEX workspaces_deleted ON workspaces (last_used_at) WHERE deleted;

-- Starts, stops and deletions of a workspace, one at a time. A worker holds a build by a lease, as it does
-- a chat; what the build makes is found again by (workspace, number). `copied_from` (0005): the workspace
-- whose files the start copies.
CREATE TABLE workspace_builds (
    id                  uuid PRIMARY KEY,
    workspace_id        uuid NOT NULL REFERENCES workspaces (id) ON DELETE CASCADE,
    build_number        integer NOT NULL CHECK (build_number >= 1),
    transition          text NOT NULL CHECK (transition IN ('start', 'stop', 'delete')),
    template_version_id uuid NOT NULL REFERENCES template_versions (id),
    params              json NOT NULL DEFAULT '{}',
    status              text NOT NULL DEFAULT 'pending',
    error               text NOT NULL DEFAULT '',
    error_code          text NOT NULL DEFAULT '',
    worker_id           uuid,
    heartbeat_at        timestamptz,
    attempt             integer NOT NULL DEFAULT 0 CHECK (attempt >= 0),
    deadline            timestamptz,
    max_deadline        timestamptz,
    initiator_id        uuid NOT NULL,
    reason              text NOT NULL,
    made_by             text,
    created_at          timestamptz NOT NULL DEFAULT now(),
    started_at          timestamptz,
    completed_at        timestamptz,

    UNIQUE (workspace_id, build_number),
    CONSTRAINT build_status_is_known
        CHECK (status IN ('pending', 'running', 'canceling', 'succeeded', 'failed', 'canceled')),
    CONSTRAINT build_reason_is_known
        CHECK (reason IN ('initiator', 'tool', 'autostop', 'autostart')),
    CONSTRAINT only_running_builds_are_held
        CHECK ((worker_id IS NOT NULL) = (status IN ('running', 'canceling'))),
    CONSTRAINT who_holds_a_build_shows_it
        CHECK ((worker_id IS NOT NULL) = (heartbeat_at IS NOT NULL)),
    CONSTRAINT a_held_build_was_taken_up
        CHECK (worker_id IS NULL OR (started_at IS NOT NULL AND attempt > 0)),
    CONSTRAINT ended_builds_have_an_end
        CHECK ((completed_at IS NOT NULL) = (status IN ('succeeded', 'failed', 'canceled'))),
    CONSTRAINT failed_builds_say_why
        CHECK (status <> 'failed' OR error <> ''),
    CONSTRAINT only_failed_builds_have_errors
        CHECK (error = '' OR status IN ('failed', 'canceled')),
    CONSTRAINT only_a_start_has_a_deadline
        CHECK (deadline IS NULL OR (transition = 'start' AND status = 'succeeded')),
    CONSTRAINT deadlines_are_in_order
        CHECK (max_deadline IS NULL OR deadline IS NULL OR deadline <= max_deadline)
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX one_active_build ON workspace_builds (workspace_id)
    WHERE completed_at IS NULL;
CREATE UNIQUE INDEX workspace_builds_made_by ON workspace_builds (made_by)
    WHERE made_by IS NOT NULL;
CREATE INDEX workspace_builds_active ON workspace_builds (created_at)
    WHERE completed_at IS NULL;
CREATE INDEX workspace_builds_deadline ON workspace_builds (deadline)
    WHERE deadline IS NOT NULL;
CREATE INDEX workspace_builds_completed ON workspace_builds (completed_at)
    WHERE completed_at IS NOT NULL;

-- The log of a build, line by line.
CREATE TABLE workspace_build_logs (
    id       bigint GENERATED ALWAYS AS IDENTITY,
    build_id uuid NOT NULL REFERENCES workspace_builds (id) ON DELETE CASCADE,
    at       timestamptz NOT NULL DEFAULT now(),
    stage    text NOT NULL,
    level    text NOT NULL CHECK (level IN ('debug', 'info', 'warning', 'error')),
    output   text NOT NULL,
    PRIMARY KEY (build_id, id)
);

-- The programs inside workspaces that act for the tools. `network` and `limits` are what the host enforces
-- for the workspace: NULL where the backend did not say.
CREATE TABLE workspace_agents (
    id                   uuid PRIMARY KEY,
    build_id             uuid NOT NULL REFERENCES workspace_builds (id) ON DELETE CASCADE,
    workspace_id         uuid NOT NULL REFERENCES workspaces (id) ON DELETE CASCADE,
    parent_id            uuid REFERENCES workspace_agents (id) ON DELETE CASCADE,
    name                 text NOT NULL CHECK (name <> ''),
    display_order        integer NOT NULL DEFAULT 0,
    os                   text NOT NULL DEFAULT '',
    arch                 text NOT NULL DEFAULT '',
    directory            text NOT NULL DEFAULT '',
    expanded_directory   text NOT NULL DEFAULT '',
    lifecycle            text NOT NULL,
    connection_timeout_s integer NOT NULL DEFAULT 0 CHECK (connection_timeout_s >= 0),
    endpoints            json NOT NULL DEFAULT '[]',
    isolation            text NOT NULL DEFAULT '',
    network              text CHECK (network IN ('none', 'full')),
    limits               json,
    boot_id              text NOT NULL DEFAULT '',
    created_at           timestamptz NOT NULL DEFAULT now(),
    first_connected_at   timestamptz,
    last_connected_at    timestamptz,
    disconnected_at      timestamptz,

    UNIQUE (build_id, name),
    CONSTRAINT agent_lifecycle_is_known CHECK (lifecycle IN ('created', 'starting', 'ready',
        'start_error', 'start_timeout', 'shutting_down', 'off')),
    CONSTRAINT agent_is_its_own_parent_never CHECK (parent_id <> id),
    CONSTRAINT first_connected_before_last
        CHECK ((first_connected_at IS NULL) = (last_connected_at IS NULL)
               AND first_connected_at <= last_connected_at)
) WITH (fillfactor = 70);
CREATE INDEX workspace_agents_on ON workspace_agents (workspace_id) WHERE lifecycle <> 'off';

-- The instructions and skills that each agent reported last, as one snapshot with its resources.
CREATE TABLE agent_context_snapshots (
    agent_id    uuid PRIMARY KEY REFERENCES workspace_agents (id) ON DELETE CASCADE,
    version     bigint NOT NULL CHECK (version >= 1),
    hash        text NOT NULL CHECK (hash <> ''),
    directory   text NOT NULL,
    os          text NOT NULL,
    received_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE agent_context_resources (
    agent_id    uuid NOT NULL REFERENCES agent_context_snapshots (agent_id) ON DELETE CASCADE,
    position    integer NOT NULL,
    kind        text NOT NULL,
    source      text NOT NULL,
    status      text NOT NULL,
    content     text NOT NULL,
    hash        text NOT NULL,
    size        bigint NOT NULL,
    error       text NOT NULL,
    name        text NOT NULL,
    description text NOT NULL,
    PRIMARY KEY (agent_id, position)
);

-- What a chat remembers of its workspace: a cache, valid only while the workspace is the chat's own. In a
-- table of its own, so that a step's commit does not carry it along. Whether a pinned context is out of
-- date is read from the snapshot: no flag could be as fresh.
CREATE TABLE chat_bindings (
    chat_id         uuid PRIMARY KEY REFERENCES chats (id) ON DELETE CASCADE,
    workspace_id    uuid NOT NULL,
    build_id        uuid,
    agent_id        uuid,
    context_agent   uuid,
    context_version bigint,
    context_hash    text,
    directory       text NOT NULL DEFAULT '',
    os              text NOT NULL DEFAULT '',
    bound_at        timestamptz NOT NULL DEFAULT now(),
    pinned_at       timestamptz,

    CONSTRAINT an_agent_is_of_a_build CHECK (agent_id IS NULL OR build_id IS NOT NULL),
    CONSTRAINT pinned_whole CHECK (
        (pinned_at IS NULL) = (context_hash IS NULL)
        AND (pinned_at IS NULL) = (context_agent IS NULL)
        AND (pinned_at IS NULL) = (context_version IS NULL))
);
CREATE INDEX chat_bindings_workspace ON chat_bindings (workspace_id);
CREATE INDEX chat_bindings_agent ON chat_bindings (agent_id) WHERE agent_id IS NOT NULL;

-- The resources as they were when the chat pinned them.
CREATE TABLE chat_context_resources (
    chat_id     uuid NOT NULL REFERENCES chat_bindings (chat_id) ON DELETE CASCADE,
    position    integer NOT NULL,
    kind        text NOT NULL,
    source      text NOT NULL,
    status      text NOT NULL,
    content     text NOT NULL,
    hash        text NOT NULL,
    size        bigint NOT NULL,
    error       text NOT NULL,
    name        text NOT NULL,
    description text NOT NULL,
    PRIMARY KEY (chat_id, position)
);


-- Policies -------------------------------------------------------------------------------------------

-- Which tool calls run, need an approval or are denied: one policy of the deployment, of each user, of each
-- workspace template, and of each root chat with its subagents.
CREATE TABLE tool_policies (
    user_id     uuid UNIQUE REFERENCES users (id) ON DELETE CASCADE,
    template_id uuid UNIQUE REFERENCES templates (id) ON DELETE CASCADE,
    chat_id     uuid UNIQUE REFERENCES chats (id) ON DELETE CASCADE,
    version     bigint NOT NULL DEFAULT 1,
    policy      jsonb NOT NULL,
    updated_at  timestamptz NOT NULL DEFAULT now(),
    updated_by  uuid,

    CONSTRAINT a_tool_policy_has_one_subject
        CHECK (num_nonnulls(user_id, template_id, chat_id) <= 1),
    CONSTRAINT a_tool_policy_has_few_rules
        CHECK (jsonb_array_length(coalesce(policy -> 'rules', '[]')) <= 200)
);
CREATE UNIQUE INDEX tool_policies_of_the_deployment ON tool_policies ((true))
    WHERE user_id IS NULL AND template_id IS NULL AND chat_id IS NULL;

-- Instructions for certain tasks that a user has written, for all chats of the user.
CREATE TABLE user_skills (
    id          uuid PRIMARY KEY,
    owner_id    uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    name        text NOT NULL,
    description text NOT NULL,
    body        text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    updated_at  timestamptz NOT NULL DEFAULT now(),

    CONSTRAINT user_skills_name UNIQUE (owner_id, name)
);


-- Spend ----------------------------------------------------------------------------------------------

-- Model calls that have no usage event yet. A worker writes the row before it checks the spend limits, sets
-- `sent` when it is about to send the request, and deletes the row in the statement that writes the usage
-- event. `record` is what another worker needs to write the event if this one dies; `reserved_micros` is
-- what the call costs at least (NULL: no price). A call that was never sent cost nothing.
CREATE TABLE open_calls (
    call_id         uuid PRIMARY KEY,
    at              timestamptz NOT NULL DEFAULT now(),
    owner_id        uuid NOT NULL,
    chat_id         uuid NOT NULL,
    root_chat_id    uuid NOT NULL,
    worker_id       uuid NOT NULL,
    epoch           bigint NOT NULL,
    history_version bigint NOT NULL,
    attempt         integer NOT NULL,
    reserved_micros bigint,
    record          json NOT NULL,
    sent            boolean NOT NULL DEFAULT true
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
CREATE INDEX open_calls_owner ON open_calls (owner_id);
CREATE INDEX open_calls_family ON open_calls (root_chat_id);

-- One row per model call. Spend outlives the chat, so there is no reference. A call has one event, found
-- by `call_id`: the call's own worker replaces the estimate that another worker recorded for it.
CREATE TABLE usage_events (
    id                    bigint GENERATED ALWAYS AS IDENTITY,
    call_id               uuid,
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
    web_searches          integer NOT NULL DEFAULT 0,
    cost_micros           bigint CHECK (cost_micros >= 0),
    price                 json,
    runtime_ms            bigint,
    ok                    boolean NOT NULL,
    estimated             boolean NOT NULL DEFAULT false,
    PRIMARY KEY (id)
);
CREATE UNIQUE INDEX usage_events_call ON usage_events (call_id) WHERE call_id IS NOT NULL;
-- Sums of a user's costs, by chat and for spend limits, are read from this index alone.
CREATE INDEX usage_events_owner_sums ON usage_events (owner_id, at)
    INCLUDE (root_chat_id, cost_micros, input_tokens, output_tokens, cache_read_tokens,
        cache_creation_tokens);
CREATE INDEX usage_events_at ON usage_events USING brin (at) WITH (pages_per_range = 16);
CREATE INDEX usage_events_family ON usage_events (root_chat_id);

-- Sums per user, day and model, made in batches behind the commits: no step updates a row that many chats
-- share.
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
CREATE INDEX usage_daily_by_day ON usage_daily (day);

-- Events before this time are in usage_daily, later ones are not.
CREATE TABLE usage_rolled_up (
    one   boolean PRIMARY KEY DEFAULT true CHECK (one),
    until timestamptz NOT NULL
);
INSERT INTO usage_rolled_up (until) VALUES ('epoch');

-- The default limit that an administrator set over the API. Without a row the settings have the default;
-- a row without an amount means that there is none.
CREATE TABLE default_spend_limit (
    one        boolean PRIMARY KEY DEFAULT true,
    micros     bigint,
    period     text NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    updated_by uuid,

    CONSTRAINT default_spend_limit_is_one_row CHECK (one),
    CONSTRAINT default_spend_limit_is_positive CHECK (micros > 0),
    CONSTRAINT spend_period_is_known CHECK (period IN ('day', 'week', 'month'))
);

-- Limits of users, and of each member of a group.
CREATE TABLE user_spend_limits (
    user_id    uuid PRIMARY KEY REFERENCES users (id) ON DELETE CASCADE,
    micros     bigint NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),

    CONSTRAINT user_spend_limit_is_positive CHECK (micros > 0)
);
CREATE TABLE group_spend_limits (
    group_id   uuid PRIMARY KEY REFERENCES groups (id) ON DELETE CASCADE,
    micros     bigint NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),

    CONSTRAINT group_spend_limit_is_positive CHECK (micros > 0)
);

-- The warnings that a user has got, so that each is given once in a period.
CREATE TABLE spend_warnings (
    user_id      uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    period_start timestamptz NOT NULL,
    percent      smallint NOT NULL,
    spent_micros bigint NOT NULL,
    limit_micros bigint NOT NULL,
    at           timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (user_id, period_start, percent)
);


-- Automation -----------------------------------------------------------------------------------------

-- Webhooks of users. A browser that subscribed to push is a webhook of the kind 'push': its URL is the
-- endpoint, its secret the browser's keys.
CREATE TABLE webhooks (
    id             uuid PRIMARY KEY,
    owner_id       uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    kind           text NOT NULL DEFAULT 'http',
    url            text NOT NULL,
    events         text[] NOT NULL,
    secret         text NOT NULL,
    secret_key_id  text GENERATED ALWAYS AS (split_part(secret, '.', 2)) STORED NOT NULL
                   REFERENCES secret_keys (id),
    enabled        boolean NOT NULL DEFAULT true,
    disabled_by    text,
    failing_since  timestamptz,
    created_at     timestamptz NOT NULL DEFAULT now(),
    updated_at     timestamptz NOT NULL DEFAULT now(),

    CONSTRAINT known_kind_of_webhook CHECK (kind IN ('http', 'push')),
    CONSTRAINT webhooks_have_events CHECK (cardinality(events) > 0),
    CONSTRAINT enabled_webhooks_have_no_reason CHECK (NOT enabled OR disabled_by IS NULL)
);
COMMENT ON COLUMN webhooks.disabled_by IS 'why chatd disabled it; NULL if its owner did';
CREATE INDEX webhooks_by_owner ON webhooks (owner_id, created_at, id);
CREATE INDEX webhooks_sealed_by ON webhooks (secret_key_id, id);

-- What is to be delivered. The commit that ends a turn inserts its deliveries, so none is lost; a delivery
-- stays until it was answered or given up. `action` is what a turn that needs a person waits for. `more`:
-- the turn ended and a queued message continues; browsers are notified at the last end only.
CREATE TABLE webhook_deliveries (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    webhook_id   uuid NOT NULL REFERENCES webhooks (id) ON DELETE CASCADE,
    event        text NOT NULL,
    chat_id      uuid,
    version      bigint,
    title        text,
    labels       jsonb,
    error        json,
    action       json,
    more         boolean NOT NULL DEFAULT false,
    created_at   timestamptz NOT NULL DEFAULT now(),
    attempts     integer NOT NULL DEFAULT 0,
    due_at       timestamptz DEFAULT now(),
    ended_at     timestamptz,
    delivered    boolean NOT NULL DEFAULT false,
    reply_status integer,
    failure      text,

    CONSTRAINT a_delivery_is_due_or_ended CHECK ((due_at IS NULL) = (ended_at IS NOT NULL))
);
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (webhook_id, due_at)
    WHERE due_at IS NOT NULL;
CREATE INDEX webhook_deliveries_log ON webhook_deliveries (webhook_id, id DESC);
CREATE INDEX webhook_deliveries_ended ON webhook_deliveries (ended_at) WHERE ended_at IS NOT NULL;

-- The one key that signs push messages for all replicas.
CREATE TABLE push_keys (
    id                  uuid PRIMARY KEY,
    name                text NOT NULL UNIQUE CHECK (name = 'vapid'),
    private_key         text NOT NULL,
    private_key_key_id  text GENERATED ALWAYS AS (split_part(private_key, '.', 2)) STORED NOT NULL
                        REFERENCES secret_keys (id),
    created_at          timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX push_keys_sealed_by ON push_keys (private_key_key_id, id);

-- Chats that start by themselves. `next_at` is the time of the next run; the replica that has started its
-- chat moves it on.
CREATE TABLE schedules (
    id               uuid PRIMARY KEY,
    owner_id         uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    name             text NOT NULL,
    cron             text NOT NULL,
    timezone         text NOT NULL,
    prompt           text NOT NULL,
    model_config_id  uuid,
    reasoning_effort text,
    labels           jsonb NOT NULL DEFAULT '{}',
    workspace_id     uuid,
    enabled          boolean NOT NULL,
    next_at          timestamptz,
    last_at          timestamptz,
    last_chat_id     uuid,
    last_error       text,
    created_at       timestamptz NOT NULL DEFAULT now(),
    updated_at       timestamptz NOT NULL DEFAULT now(),

    CONSTRAINT disabled_schedules_are_not_due CHECK (enabled OR next_at IS NULL)
);
CREATE INDEX schedules_by_owner ON schedules (owner_id, created_at, id);
CREATE INDEX schedules_due ON schedules (next_at) WHERE next_at IS NOT NULL;


-- Settings, audit ------------------------------------------------------------------------------------

-- Settings that are changed over the API, of the deployment and of each user. `version` counts the changes
-- of a document.
CREATE TABLE deployment_settings (
    one        boolean PRIMARY KEY DEFAULT true CHECK (one),
    version    bigint NOT NULL,
    document   json NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    updated_by uuid
);
CREATE TABLE user_settings (
    user_id    uuid PRIMARY KEY REFERENCES users (id) ON DELETE CASCADE,
    version    bigint NOT NULL,
    document   json NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now()
);

-- Who did what to which object. Read newest first in a range of time: all of it, of a user, of a type of
-- objects, of one object.
CREATE TABLE audit_log (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at          timestamptz NOT NULL DEFAULT now(),
    actor_id    uuid,
    actor       text NOT NULL,
    ip          text,
    action      text NOT NULL,
    object_type text NOT NULL,
    object_id   text NOT NULL,
    detail      jsonb,
    outcome     text NOT NULL DEFAULT 'done',

    CONSTRAINT audit_outcome_is_known CHECK (outcome IN ('done', 'refused', 'failed'))
);
COMMENT ON COLUMN audit_log.actor IS 'a username at that time, or the name of a worker or command';
CREATE INDEX audit_log_by_time ON audit_log (at, id);
CREATE INDEX audit_log_of_actor ON audit_log (actor_id, at, id);
CREATE INDEX audit_log_of_type ON audit_log (object_type, at, id);
CREATE INDEX audit_log_of_object ON audit_log (object_type, object_id, at, id);

-- Templates, the workspaces made from them, their builds and agents, and which chat uses which.
--
-- All of one organisation: a column for it can be added with a default. A build is a row that
-- one worker holds by a lease, as a chat is; what it makes is found again by (workspace, number).

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
    deprecated             boolean NOT NULL DEFAULT false,
    deleted                boolean NOT NULL DEFAULT false,
    default_ttl_s          integer NOT NULL DEFAULT 0,
    activity_bump_s        integer NOT NULL DEFAULT 3600,
    require_active_version boolean NOT NULL DEFAULT false,
    created_at             timestamptz NOT NULL DEFAULT now(),
    updated_at             timestamptz NOT NULL DEFAULT now(),

    CONSTRAINT template_has_a_name
        CHECK (name ~ '^[A-Za-z0-9]+(-[A-Za-z0-9]+)*$' AND length(name) <= 32),
    CONSTRAINT template_comes_from_somewhere
        CHECK (origin IN ('builtin', 'settings', 'user')),
    CONSTRAINT template_times_are_not_negative
        CHECK (default_ttl_s >= 0 AND activity_bump_s >= 0)
);
CREATE UNIQUE INDEX templates_name ON templates (lower(name)) WHERE NOT deleted;

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

CREATE TABLE workspaces (
    id           uuid PRIMARY KEY,
    owner_id     uuid NOT NULL,
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
-- Who asked for it, so that the same request made again finds what it made.
CREATE UNIQUE INDEX workspaces_made_by ON workspaces (made_by) WHERE made_by IS NOT NULL;
CREATE INDEX workspaces_template ON workspaces (template_id);
CREATE INDEX workspaces_host ON workspaces (host_id) WHERE NOT deleted;

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

CREATE TABLE workspace_build_logs (
    id       bigint GENERATED ALWAYS AS IDENTITY,
    build_id uuid NOT NULL REFERENCES workspace_builds (id) ON DELETE CASCADE,
    at       timestamptz NOT NULL DEFAULT now(),
    stage    text NOT NULL,
    level    text NOT NULL CHECK (level IN ('debug', 'info', 'warning', 'error')),
    output   text NOT NULL,
    PRIMARY KEY (build_id, id)
);

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

-- The latest word of each agent on its workspace's instructions and skills.
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

-- What a chat remembers of its workspace: a cache, worth something only while the workspace is
-- the chat's own. Beside the chats, so that a step's commit does not carry it along. Whether a
-- pinned context has fallen behind is read off the snapshot: no flag could be as fresh.
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

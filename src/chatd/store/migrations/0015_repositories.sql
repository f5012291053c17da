-- Repositories of git hosts ---------------------------------------------------------------------------

-- Git hosts whose issues and pull requests start chats. The chats belong to `user_id`. `rest_until`: the
-- host has asked for no requests until then. `problem`: why the host refuses the token.
CREATE TABLE repository_connections (
    id              uuid PRIMARY KEY,
    name            text NOT NULL CHECK (name <> '' AND length(name) <= 64),
    vendor          text NOT NULL CHECK (vendor IN ('github', 'gitlab', 'gitea')),
    url             text NOT NULL CHECK (length(url) <= 2000),
    repositories    text[] NOT NULL CHECK (cardinality(repositories) BETWEEN 1 AND 100),
    mention         text NOT NULL CHECK (mention <> ''),
    label           text NOT NULL DEFAULT '',
    template_id     uuid NOT NULL REFERENCES templates (id) ON DELETE CASCADE,
    model_config_id uuid,
    user_id         uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    allowed         text[] NOT NULL DEFAULT '{}',
    check_rounds    integer NOT NULL CHECK (check_rounds BETWEEN 0 AND 20),
    enabled         boolean NOT NULL DEFAULT true,
    problem         text,
    rest_until      timestamptz,
    token           text NOT NULL,
    token_key_id    text GENERATED ALWAYS AS (split_part(token, '.', 2)) STORED NOT NULL
        REFERENCES secret_keys (id),
    secret          text NOT NULL,
    secret_key_id   text GENERATED ALWAYS AS (split_part(secret, '.', 2)) STORED NOT NULL
        REFERENCES secret_keys (id),
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at      timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE UNIQUE INDEX repository_connections_name ON repository_connections (lower(name));
CREATE INDEX repository_connections_of_template ON repository_connections (template_id);
CREATE INDEX repository_connections_of_user ON repository_connections (user_id);
CREATE INDEX repository_connections_token_sealed_by ON repository_connections (token_key_id, id);
CREATE INDEX repository_connections_secret_sealed_by ON repository_connections (secret_key_id, id);

-- What the hosts have delivered and chatd acts upon. A row is claimed by moving `due_at`; `key` follows from
-- the signed body, so a repeated delivery of the same event starts nothing.
CREATE TABLE repository_events (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    connection_id uuid NOT NULL REFERENCES repository_connections (id) ON DELETE CASCADE,
    key           text NOT NULL CHECK (key <> '' AND length(key) <= 400),
    delivery_id   text NOT NULL,
    repository    text NOT NULL,
    number        bigint NOT NULL,
    event         json NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    attempts      integer NOT NULL DEFAULT 0,
    due_at        timestamptz DEFAULT now(),
    ended_at      timestamptz,
    outcome       text NOT NULL DEFAULT 'waiting'
        CHECK (outcome IN ('waiting', 'done', 'ignored', 'failed')),
    detail        text NOT NULL DEFAULT '',
    chat_id       uuid,

    CONSTRAINT an_event_is_due_or_ended CHECK (
        (due_at IS NULL) = (ended_at IS NOT NULL) AND (outcome = 'waiting') = (ended_at IS NULL))
);
CREATE UNIQUE INDEX repository_events_key ON repository_events (connection_id, key);
CREATE INDEX repository_events_log ON repository_events (connection_id, id DESC);
CREATE INDEX repository_events_due ON repository_events (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX repository_events_waiting ON repository_events (connection_id, repository, number, id)
    WHERE due_at IS NOT NULL;
CREATE INDEX repository_events_ended ON repository_events (ended_at) WHERE ended_at IS NOT NULL;

-- An issue or pull request with its chat. While `is_shown` is false, a comment there is to show what the chat
-- does; `comment_tried` is set before the comment is made, `comment_id` after it, and `comment_key` in its
-- text finds it in between. `request` is the event that it answers, at `reply_number`. `rounds` are the
-- commits whose failed checks were sent back.
CREATE TABLE repository_threads (
    id            uuid PRIMARY KEY,
    connection_id uuid NOT NULL REFERENCES repository_connections (id) ON DELETE CASCADE,
    repository    text NOT NULL,
    number        bigint NOT NULL,
    is_pull       boolean NOT NULL,
    title         text NOT NULL,
    branch        text NOT NULL,
    chat_id       uuid,
    workspace_id  uuid,
    pull_number   bigint,
    pull_url      text NOT NULL DEFAULT '',
    rounds        text[] NOT NULL DEFAULT '{}' CHECK (cardinality(rounds) <= 20),
    request       text NOT NULL DEFAULT '',
    reply_number  bigint NOT NULL,
    reply_is_pull boolean NOT NULL,
    comment_key   uuid NOT NULL,
    comment_tried boolean NOT NULL DEFAULT false,
    comment_id    text,
    shown_version bigint NOT NULL DEFAULT 0,
    is_shown      boolean NOT NULL DEFAULT true,
    attempts      integer NOT NULL DEFAULT 0,
    due_at        timestamptz NOT NULL DEFAULT now(),
    failure       text NOT NULL DEFAULT '',
    created_at    timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX repository_threads_place ON repository_threads (
    connection_id, repository, number, is_pull);
CREATE INDEX repository_threads_of_pull ON repository_threads (connection_id, repository, pull_number)
    WHERE pull_number IS NOT NULL;
CREATE INDEX repository_threads_of_branch ON repository_threads (connection_id, repository, branch);
CREATE INDEX repository_threads_of_chat ON repository_threads (chat_id) WHERE chat_id IS NOT NULL;
CREATE INDEX repository_threads_of_workspace ON repository_threads (workspace_id)
    WHERE workspace_id IS NOT NULL;
CREATE INDEX repository_threads_due ON repository_threads (due_at) WHERE NOT is_shown;

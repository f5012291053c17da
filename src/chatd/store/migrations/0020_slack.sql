-- Slack -------------------------------------------------------------------------------------------------

-- Workspaces of Slack whose threads are chats. `socket_holder` is the process that holds the connection to
-- Slack, until `socket_until`, and `connected_at` when Slack last said hello. `team_id` and `bot_user_id` are
-- what Slack says of the bot token. `rest_until`: Slack has asked for no requests until then. `problem`: why
-- Slack refuses a token.
CREATE TABLE slack_connections (
    id               uuid PRIMARY KEY,
    name             text NOT NULL CHECK (name <> '' AND length(name) <= 64),
    template_id      uuid REFERENCES templates (id) ON DELETE SET NULL,
    project_id       uuid REFERENCES projects (id) ON DELETE SET NULL,
    model_config_id  uuid,
    match_email      boolean NOT NULL DEFAULT false,
    enabled          boolean NOT NULL DEFAULT true,
    team_id          text NOT NULL DEFAULT '',
    team_name        text NOT NULL DEFAULT '',
    bot_user_id      text NOT NULL DEFAULT '',
    problem          text,
    rest_until       timestamptz,
    socket_holder    uuid,
    socket_until     timestamptz,
    connected_at     timestamptz,
    bot_token        text NOT NULL,
    bot_token_key_id text GENERATED ALWAYS AS (split_part(bot_token, '.', 2)) STORED NOT NULL
        REFERENCES secret_keys (id),
    app_token        text NOT NULL,
    app_token_key_id text GENERATED ALWAYS AS (split_part(app_token, '.', 2)) STORED NOT NULL
        REFERENCES secret_keys (id),
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at       timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE UNIQUE INDEX slack_connections_name ON slack_connections (lower(name));
CREATE INDEX slack_connections_of_template ON slack_connections (template_id) WHERE template_id IS NOT NULL;
CREATE INDEX slack_connections_of_project ON slack_connections (project_id) WHERE project_id IS NOT NULL;
CREATE INDEX slack_connections_bot_token_sealed_by ON slack_connections (bot_token_key_id, id);
CREATE INDEX slack_connections_app_token_sealed_by ON slack_connections (app_token_key_id, id);

-- Which person of Slack is which user. The user made a code, and the person sent it to the bot.
CREATE TABLE slack_links (
    id            uuid PRIMARY KEY,
    connection_id uuid NOT NULL REFERENCES slack_connections (id) ON DELETE CASCADE,
    slack_user    text NOT NULL CHECK (slack_user <> ''),
    slack_name    text NOT NULL DEFAULT '',
    user_id       uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE UNIQUE INDEX slack_links_person ON slack_links (connection_id, slack_user);
CREATE INDEX slack_links_of_user ON slack_links (user_id);

CREATE TABLE slack_link_codes (
    code_sha256 bytea PRIMARY KEY CHECK (octet_length(code_sha256) = 32),
    user_id     uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    expires_at  timestamptz NOT NULL
);
CREATE INDEX slack_link_codes_of_user ON slack_link_codes (user_id);
CREATE INDEX slack_link_codes_expired ON slack_link_codes (expires_at);

-- What Slack has delivered and chatd acts upon; stored before Slack is told so. A row is claimed by moving
-- `due_at`; `key` follows from the message or the press, so a repeated delivery starts nothing. `place` is the
-- thread: its events are acted upon in order.
CREATE TABLE slack_events (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    connection_id uuid NOT NULL REFERENCES slack_connections (id) ON DELETE CASCADE,
    key           text NOT NULL CHECK (key <> '' AND length(key) <= 400),
    place         text NOT NULL,
    event         json NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    attempts      integer NOT NULL DEFAULT 0,
    due_at        timestamptz DEFAULT now(),
    ended_at      timestamptz,
    outcome       text NOT NULL DEFAULT 'waiting'
        CHECK (outcome IN ('waiting', 'done', 'ignored', 'failed')),
    detail        text NOT NULL DEFAULT '',
    chat_id       uuid,

    CONSTRAINT an_event_of_slack_is_due_or_ended CHECK (
        (due_at IS NULL) = (ended_at IS NOT NULL) AND (outcome = 'waiting') = (ended_at IS NULL))
);
CREATE UNIQUE INDEX slack_events_key ON slack_events (connection_id, key);
CREATE INDEX slack_events_log ON slack_events (connection_id, id DESC);
CREATE INDEX slack_events_due ON slack_events (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX slack_events_waiting ON slack_events (connection_id, place, id) WHERE due_at IS NOT NULL;
CREATE INDEX slack_events_ended ON slack_events (ended_at) WHERE ended_at IS NOT NULL;

-- A thread with its chat. While `is_shown` is false, messages there are to show what the chat does. `request`
-- is the event that is answered, `shown_message` the last message of the chat that was shown. `claim` counts the
-- claims: only the newest one posts.
CREATE TABLE slack_threads (
    id            uuid PRIMARY KEY,
    connection_id uuid NOT NULL REFERENCES slack_connections (id) ON DELETE CASCADE,
    channel       text NOT NULL,
    thread_ts     text NOT NULL,
    chat_id       uuid,
    request       text NOT NULL DEFAULT '',
    shown_message bigint NOT NULL DEFAULT 0,
    shown_version bigint NOT NULL DEFAULT 0,
    is_shown      boolean NOT NULL DEFAULT true,
    attempts      integer NOT NULL DEFAULT 0,
    claim         bigint NOT NULL DEFAULT 0,
    due_at        timestamptz NOT NULL DEFAULT now(),
    failure       text NOT NULL DEFAULT '',
    created_at    timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX slack_threads_place ON slack_threads (connection_id, channel, thread_ts);
CREATE INDEX slack_threads_of_chat ON slack_threads (chat_id) WHERE chat_id IS NOT NULL;
CREATE INDEX slack_threads_due ON slack_threads (due_at) WHERE NOT is_shown;

-- The messages of chatd in a thread. A row is written before the message is posted, and `ts`, its id at Slack,
-- after it; in between the row's id, which the message carries, finds it. `digest` is of what it shows. With
-- `tool_call_id` its buttons answer that call, as long as it is the one of `fingerprint`; `body` are the blocks
-- of the call that stay when it is answered.
CREATE TABLE slack_posts (
    id           uuid PRIMARY KEY,
    thread_id    uuid NOT NULL REFERENCES slack_threads (id) ON DELETE CASCADE,
    key          text NOT NULL,
    ts           text,
    digest       text NOT NULL DEFAULT '',
    tool_call_id text,
    fingerprint  text,
    body         json,
    is_closed    boolean NOT NULL DEFAULT false,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE UNIQUE INDEX slack_posts_key ON slack_posts (thread_id, key);

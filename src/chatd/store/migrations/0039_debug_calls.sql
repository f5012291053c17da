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

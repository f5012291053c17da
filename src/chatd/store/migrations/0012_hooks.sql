-- Hooks ----------------------------------------------------------------------------------------------

-- Receivers that are asked while a turn waits. `template_id`: only chats with a workspace of this template
-- ask it; NULL: all chats. They are asked in the order in which they were made. What they answered about a
-- call is in the row of its chat (`pending_calls`) until the call has its result.
CREATE TABLE hooks (
    id              uuid PRIMARY KEY,
    template_id     uuid REFERENCES templates (id) ON DELETE CASCADE,
    name            text NOT NULL CHECK (name <> '' AND length(name) <= 64),
    url             text NOT NULL CHECK (length(url) <= 2000),
    events          text[] NOT NULL CHECK (cardinality(events) BETWEEN 1 AND 10),
    failure         text NOT NULL CHECK (failure IN ('open', 'closed')),
    timeout_ms      integer NOT NULL CHECK (timeout_ms BETWEEN 100 AND 30000),
    enabled         boolean NOT NULL DEFAULT true,
    secret          text NOT NULL,
    secret_key_id   text GENERATED ALWAYS AS (split_part(secret, '.', 2)) STORED NOT NULL
        REFERENCES secret_keys (id),
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at      timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE UNIQUE INDEX hooks_name ON hooks (
    coalesce(template_id, '00000000-0000-0000-0000-000000000000'), lower(name));
CREATE INDEX hooks_of_template ON hooks (template_id) WHERE template_id IS NOT NULL;
CREATE INDEX hooks_sealed_by ON hooks (secret_key_id, id);

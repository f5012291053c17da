-- Chats that start by themselves. `next_at` is the time of the next run; the replica that has started
-- its chat moves it on.
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

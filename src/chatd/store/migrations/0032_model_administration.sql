-- Providers and models that administrators change over the API. Rows of the settings and of the
-- environment stay as they are: each process declares them at its start.
--
-- A replica of an older version reads every column of `providers`, so new ones have a table of
-- their own.
ALTER TABLE providers
    DROP CONSTRAINT provider_source_is_known,
    ADD CONSTRAINT provider_source_is_known
        CHECK (source IN ('settings', 'environment', 'database'));

-- `config` is what the API may show; `sealed_config` has headers, the proxy and AWS credentials.
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

-- Without a `user_id` the key is for all users.
CREATE TABLE provider_keys (
    id                uuid PRIMARY KEY,
    provider_id       uuid NOT NULL REFERENCES providers (id) ON DELETE CASCADE,
    user_id           uuid REFERENCES users (id) ON DELETE CASCADE,
    name              text NOT NULL,
    masked            text NOT NULL,
    sealed_key        text NOT NULL,
    sealed_key_key_id text GENERATED ALWAYS AS (split_part(sealed_key, '.', 2)) STORED NOT NULL
        REFERENCES secret_keys (id),
    created_at        timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX provider_keys_by_provider ON provider_keys (provider_id, created_at)
    WHERE user_id IS NULL;
CREATE UNIQUE INDEX provider_keys_one_per_user ON provider_keys (user_id, provider_id)
    WHERE user_id IS NOT NULL;
CREATE INDEX provider_keys_sealed_by ON provider_keys (sealed_key_key_id, id);

-- A deleted model keeps its row, because chats and usage name it. Its name can be used again.
ALTER TABLE model_configs
    DROP CONSTRAINT model_source_is_known,
    ADD CONSTRAINT model_source_is_known
        CHECK (source IN ('settings', 'environment', 'database')),
    DROP CONSTRAINT model_configs_name_key,
    ADD COLUMN display_name text,
    ADD COLUMN capabilities json,
    ADD COLUMN reported     json,
    ADD COLUMN deleted_at   timestamptz,
    ADD CONSTRAINT a_deleted_model_is_disabled CHECK (deleted_at IS NULL OR NOT enabled);
CREATE UNIQUE INDEX model_configs_live_name ON model_configs (name) WHERE deleted_at IS NULL;

-- The models that do a task for all chats, instead of the chat's own model.
CREATE TABLE model_overrides (
    task            text PRIMARY KEY,
    model_config_id uuid NOT NULL REFERENCES model_configs (id),
    updated_at      timestamptz NOT NULL DEFAULT now(),

    CONSTRAINT override_task_is_known CHECK (task IN ('title', 'compaction'))
);

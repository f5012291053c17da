-- Providers and models, so that every replica and every old chat knows them by a stable id; and
-- where to find chats that nobody has touched for long.
--
-- What the settings declare is written at each start and read by everybody; what they no longer
-- declare is switched off and stays, because chats and usage name it. Keys are not kept here:
-- they stay in the memory of the process that was given them.

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

    CONSTRAINT provider_source_is_known CHECK (source IN ('settings', 'database'))
);

CREATE TABLE model_configs (
    id                   uuid PRIMARY KEY,
    name                 text NOT NULL UNIQUE,
    provider_id          uuid NOT NULL REFERENCES providers (id),
    model                text NOT NULL,
    position             integer NOT NULL,
    context_limit        integer,
    compaction_threshold smallint,
    prices               json,
    parameters           json NOT NULL,
    enabled              boolean NOT NULL,
    is_default           boolean NOT NULL,
    source               text NOT NULL,
    created_at           timestamptz NOT NULL DEFAULT now(),
    updated_at           timestamptz NOT NULL DEFAULT now(),

    CONSTRAINT model_source_is_known CHECK (source IN ('settings', 'database')),
    CONSTRAINT a_default_can_be_used CHECK (enabled OR NOT is_default)
);
CREATE UNIQUE INDEX model_configs_one_default ON model_configs (is_default) WHERE is_default;
CREATE INDEX model_configs_by_provider ON model_configs (provider_id);

-- All these columns are indexed already: a step's commit stays heap-only.
CREATE INDEX chats_idle ON chats (updated_at) WHERE parent_chat_id IS NULL AND NOT archived;
CREATE INDEX chats_shelved ON chats (updated_at) WHERE parent_chat_id IS NULL AND archived;

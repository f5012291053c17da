-- MCP servers that administrators configured or that settings declare, the clients that chatd
-- registered at their authorization servers, the tokens of users, and the servers of a chat.
--
-- A deleted server keeps its row without secrets: chats and stored tool calls name it.
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

-- A client of chatd at an authorization server, with the addresses that were discovered. One for
-- each address to which browsers come back.
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

-- `refreshing_until`: one process is asking for new tokens; the others wait for its result.
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

-- NULL: none was chosen, and the servers that are on by default are used.
ALTER TABLE chats ADD COLUMN mcp_server_ids uuid[];

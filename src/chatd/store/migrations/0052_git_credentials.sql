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

-- Credentials of hosts ---------------------------------------------------------------------------------

-- What the proxy of a workspace adds to requests for a host and port, and for a path and all below it, so
-- that the workspace never holds it. `owner_id`: for the workspaces of this user; `group_id`: for those of
-- its members; neither: for those of all users.
CREATE TABLE host_credentials (
    id                   uuid PRIMARY KEY,
    owner_id             uuid REFERENCES users (id) ON DELETE CASCADE,
    group_id             uuid REFERENCES groups (id) ON DELETE CASCADE,
    host                 text NOT NULL CHECK (host <> ''),
    port                 integer NOT NULL CHECK (port BETWEEN 1 AND 65535),
    path                 text NOT NULL CHECK (path LIKE '/%'),
    scheme               text NOT NULL CHECK (scheme IN ('bearer', 'basic', 'header')),
    header               text NOT NULL DEFAULT '',
    username             text NOT NULL DEFAULT '',
    sealed_secret        text NOT NULL,
    sealed_secret_key_id text GENERATED ALWAYS AS (split_part(sealed_secret, '.', 2)) STORED NOT NULL
        REFERENCES secret_keys (id),
    created_by           uuid,
    created_at           timestamptz NOT NULL DEFAULT clock_timestamp(),

    CONSTRAINT a_host_credential_has_one_scope CHECK (num_nonnulls(owner_id, group_id) <= 1)
);
CREATE UNIQUE INDEX one_host_credential_per_path ON host_credentials (
    host, port, path, coalesce(owner_id, group_id, '00000000-0000-0000-0000-000000000000'));
CREATE INDEX host_credentials_of_owner ON host_credentials (owner_id) WHERE owner_id IS NOT NULL;
CREATE INDEX host_credentials_of_group ON host_credentials (group_id) WHERE group_id IS NOT NULL;
CREATE INDEX host_credentials_sealed_by ON host_credentials (sealed_secret_key_id, id);

-- Whether git in the user's workspaces uses the token, by the same proxy.
ALTER TABLE git_credentials ADD COLUMN in_workspaces boolean NOT NULL DEFAULT false;

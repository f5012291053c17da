-- Users, groups, credentials, shares of chats, and the audit log.
--
-- Before this migration every row belonged to one constant owner, the holder of the administrator's
-- token. That owner becomes a user; an owner of rows that is not known becomes a member without a
-- way to sign in. The foreign keys are validated by the next migration, in a transaction of its own,
-- so that writes do not wait for it.

CREATE TABLE users (
    id            uuid PRIMARY KEY,
    username      text NOT NULL,
    email         text,
    name          text NOT NULL DEFAULT '',
    avatar_url    text,
    role          text NOT NULL,
    status        text NOT NULL DEFAULT 'active',
    is_service    boolean NOT NULL DEFAULT false,
    password_hash text,
    created_at    timestamptz NOT NULL DEFAULT now(),
    updated_at    timestamptz NOT NULL DEFAULT now(),
    last_seen_at  timestamptz,
    deleted_at    timestamptz,

    CONSTRAINT role_is_known CHECK (role IN ('admin', 'member', 'viewer')),
    CONSTRAINT user_status_is_known CHECK (status IN ('active', 'suspended')),
    CONSTRAINT service_accounts_have_no_password CHECK (NOT is_service OR password_hash IS NULL)
);
CREATE UNIQUE INDEX users_by_username ON users (lower(username)) WHERE deleted_at IS NULL;
CREATE UNIQUE INDEX users_by_email ON users (lower(email))
    WHERE email IS NOT NULL AND deleted_at IS NULL;

INSERT INTO users (id, username, name, role)
VALUES ('c4a7d000-0000-4000-8000-000000000001', 'admin', 'Administrator', 'admin');

INSERT INTO users (id, username, role)
SELECT owner_id, 'user-' || owner_id::text, 'member'
FROM (SELECT owner_id FROM chats UNION SELECT owner_id FROM workspaces) found
ON CONFLICT (id) DO NOTHING;

ALTER TABLE chats ADD CONSTRAINT chats_have_an_owner
    FOREIGN KEY (owner_id) REFERENCES users (id) NOT VALID;
ALTER TABLE workspaces ADD CONSTRAINT workspaces_have_an_owner
    FOREIGN KEY (owner_id) REFERENCES users (id) NOT VALID;

CREATE TABLE groups (
    id         uuid PRIMARY KEY,
    name       text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX groups_by_name ON groups (lower(name));

CREATE TABLE group_members (
    user_id  uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    group_id uuid NOT NULL REFERENCES groups (id) ON DELETE CASCADE,
    added_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (user_id, group_id)
);
CREATE INDEX group_members_by_group ON group_members (group_id, user_id);

-- How users of an OpenID provider are known.
CREATE TABLE user_identities (
    issuer     text NOT NULL,
    subject    text NOT NULL,
    user_id    uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    email      text,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (issuer, subject)
);
CREATE INDEX user_identities_by_user ON user_identities (user_id);

-- Browser sessions, API tokens, one-time sign-in links and one-time tickets for streams. Only a digest
-- of the secret is stored. A revoked credential is deleted. `scopes` is NULL for all of them.
CREATE TABLE credentials (
    id            uuid PRIMARY KEY,
    kind          text NOT NULL,
    user_id       uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    name          text NOT NULL DEFAULT '',
    secret_sha256 bytea NOT NULL,
    scopes        text[],
    created_at    timestamptz NOT NULL DEFAULT now(),
    expires_at    timestamptz,
    ends_at       timestamptz,
    last_used_at  timestamptz,
    ip            text,
    user_agent    text,
    created_by    uuid,
    parent_id     uuid REFERENCES credentials (id) ON DELETE CASCADE,

    CONSTRAINT credential_kind_is_known CHECK (kind IN ('session', 'token', 'link', 'ticket')),
    CONSTRAINT only_tokens_last_for_ever CHECK (kind = 'token' OR expires_at IS NOT NULL)
);
COMMENT ON COLUMN credentials.expires_at IS 'of a session: moves with its use, at most to ends_at';
COMMENT ON COLUMN credentials.parent_id IS 'of a ticket: the credential that asked for it';
CREATE UNIQUE INDEX credentials_by_secret ON credentials (secret_sha256);
CREATE INDEX credentials_by_user ON credentials (user_id, kind, created_at);
CREATE INDEX credentials_by_expiry ON credentials (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX credentials_by_parent ON credentials (parent_id) WHERE parent_id IS NOT NULL;

-- Failed sign-ins, counted for all replicas: per account and per address.
CREATE TABLE sign_in_attempts (
    bucket     text PRIMARY KEY,
    tokens     double precision NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX sign_in_attempts_age ON sign_in_attempts (updated_at);

CREATE TABLE audit_log (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at          timestamptz NOT NULL DEFAULT now(),
    actor_id    uuid,
    actor       text NOT NULL,
    ip          text,
    action      text NOT NULL,
    object_type text NOT NULL,
    object_id   text NOT NULL,
    detail      jsonb,
    outcome     text NOT NULL DEFAULT 'done',

    CONSTRAINT audit_outcome_is_known CHECK (outcome IN ('done', 'refused', 'failed'))
);
COMMENT ON COLUMN audit_log.actor IS 'a username at that time, or the name of a worker or command';
CREATE INDEX audit_log_by_actor ON audit_log (actor_id, id DESC);
CREATE INDEX audit_log_by_object ON audit_log (object_type, object_id, id DESC);

-- Who may read a root chat and its subagents, beside its owner.
CREATE TABLE chat_shares (
    chat_id    uuid NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
    user_id    uuid REFERENCES users (id) ON DELETE CASCADE,
    group_id   uuid REFERENCES groups (id) ON DELETE CASCADE,
    created_by uuid,
    created_at timestamptz NOT NULL DEFAULT now(),

    CONSTRAINT shared_with_a_user_or_a_group CHECK (num_nonnulls(user_id, group_id) = 1)
);
CREATE UNIQUE INDEX chat_shares_users ON chat_shares (chat_id, user_id) WHERE user_id IS NOT NULL;
CREATE UNIQUE INDEX chat_shares_groups ON chat_shares (chat_id, group_id)
    WHERE group_id IS NOT NULL;
CREATE INDEX chat_shares_of_user ON chat_shares (user_id, chat_id) WHERE user_id IS NOT NULL;
CREATE INDEX chat_shares_of_group ON chat_shares (group_id, chat_id) WHERE group_id IS NOT NULL;

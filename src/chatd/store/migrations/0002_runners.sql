-- Runners: processes that offer workspaces, and how replicas reach them -----------------------------

-- What a runner shows to be let in. A token is shown once; `hash` is its SHA-256. Its runners belong to
-- its pool. A revoked or expired token ends the connections that were made with it.
CREATE TABLE runner_tokens (
    id           uuid PRIMARY KEY,
    name         text NOT NULL CHECK (name <> ''),
    pool         text NOT NULL,
    hash         bytea NOT NULL UNIQUE,
    created_by   uuid NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz,
    revoked_at   timestamptz,
    last_used_at timestamptz,

    CONSTRAINT runner_token_has_a_pool
        CHECK (pool ~ '^[a-z0-9]+(-[a-z0-9]+)*$' AND length(pool) <= 32)
);

-- Every runner that has connected once, and the one inside each server (`builtin`, by the id of its host).
-- `workspaces.host_id` names the runner that has a workspace. `pool` is empty for those of servers.
-- `owner_id`: a runner that a user started for themselves; it takes that user's workspaces only, and only
-- those that name it. `epoch` rises with every connection: of two processes with one id the later one counts.
-- `orphans` are workspaces that the runner has and the database does not know; they are kept.
CREATE TABLE runners (
    id              text PRIMARY KEY CHECK (id <> '' AND length(id) <= 128),
    name            text NOT NULL CHECK (name <> ''),
    pool            text NOT NULL DEFAULT '',
    owner_id        uuid REFERENCES users (id) ON DELETE CASCADE,
    token_id        uuid REFERENCES runner_tokens (id),
    builtin         boolean NOT NULL DEFAULT false,
    version         text NOT NULL DEFAULT '',
    labels          text[] NOT NULL DEFAULT '{}',
    backends        json NOT NULL DEFAULT '[]',
    capacity        integer NOT NULL DEFAULT 0 CHECK (capacity >= 0),
    running         integer NOT NULL DEFAULT 0 CHECK (running >= 0),
    os              text NOT NULL DEFAULT '',
    arch            text NOT NULL DEFAULT '',
    draining        boolean NOT NULL DEFAULT false,
    epoch           bigint NOT NULL DEFAULT 0,
    orphans         text[] NOT NULL DEFAULT '{}',
    created_at      timestamptz NOT NULL DEFAULT now(),
    connected_at    timestamptz,
    disconnected_at timestamptz,
    seen_at         timestamptz NOT NULL DEFAULT now(),

    CONSTRAINT a_runner_is_of_one_kind
        CHECK ((builtin)::integer + (owner_id IS NOT NULL)::integer + (token_id IS NOT NULL)::integer = 1)
) WITH (fillfactor = 70);
CREATE INDEX runners_of_token ON runners (token_id) WHERE token_id IS NOT NULL;

-- Which replica reaches a holder (a runner, or an agent that dials out by itself) without another one, and
-- the address at which other replicas reach that replica; empty: they cannot. A stale row is harmless: the
-- replica refuses, and the next row is tried.
CREATE TABLE tunnels (
    holder  text NOT NULL,
    replica uuid NOT NULL,
    address text NOT NULL,
    epoch   bigint NOT NULL DEFAULT 0,
    seen_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (holder, replica)
) WITH (fillfactor = 70);
CREATE INDEX tunnels_of_replica ON tunnels (replica);

-- The kind of workspaces that a server makes on its own host has the name of its isolation.
UPDATE templates SET backend = 'sandbox' WHERE backend = 'local';

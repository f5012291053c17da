-- Hosts that ask a running server for the secrets of the deployment. The reply is sealed to a key that only
-- the asking process has, in memory, so neither this table nor a copy of it reveals anything. Rows live for
-- two minutes.
CREATE UNLOGGED TABLE secret_requests (
    id              uuid PRIMARY KEY,
    host_id         text NOT NULL,
    name            text NOT NULL,
    key_id          text NOT NULL,
    with_workspaces boolean NOT NULL,
    public_key      bytea NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT now(),
    expires_at      timestamptz NOT NULL DEFAULT now() + interval '2 minutes',
    answered_by     text,
    reply_key       bytea,
    reply           bytea,

    CONSTRAINT secret_reply_is_whole CHECK (num_nulls(answered_by, reply_key, reply) IN (0, 3))
);

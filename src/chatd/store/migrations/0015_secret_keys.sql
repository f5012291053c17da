-- Which keys have sealed secrets in this database, without the keys themselves. A sealed column has
-- a generated column with its key's id that references this table: a key that a value uses cannot be
-- removed, and a value cannot be sealed with a key that was removed.
--
-- `staged`: a key that running processes are getting; `current`: seals; `retired`: opens only.
CREATE TABLE secret_keys (
    id          text PRIMARY KEY,
    check_value text NOT NULL,
    state       text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),

    CONSTRAINT secret_key_state_is_known CHECK (state IN ('staged', 'current', 'retired'))
);
CREATE UNIQUE INDEX secret_keys_one_current ON secret_keys (state) WHERE state = 'current';

-- Which keys each running process holds: a staged key becomes the current one when all have it.
CREATE TABLE secret_key_holders (
    process_id uuid PRIMARY KEY,
    name       text NOT NULL,
    key_ids    text[] NOT NULL,
    renewed_at timestamptz NOT NULL DEFAULT now()
);

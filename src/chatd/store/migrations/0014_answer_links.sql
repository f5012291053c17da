-- Links that answer one call once ----------------------------------------------------------------------------

-- Made for a notification, if the settings allow it. The secret is stored as a digest. `fingerprint` tells the
-- call from a later one with the same id. `decision` is that of the first press.
CREATE TABLE answer_links (
    id            uuid PRIMARY KEY,
    chat_id       uuid NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
    tool_call_id  text NOT NULL,
    user_id       uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    fingerprint   text NOT NULL,
    secret_sha256 bytea NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at    timestamptz NOT NULL,
    decision      text,
    used_at       timestamptz,

    CONSTRAINT an_answer_link_has_a_digest CHECK (octet_length(secret_sha256) = 32),
    CONSTRAINT an_answer_link_approves_or_denies CHECK (decision IN ('approve', 'deny')),
    CONSTRAINT a_used_answer_link_has_a_decision CHECK ((decision IS NULL) = (used_at IS NULL))
);
CREATE UNIQUE INDEX answer_links_by_secret ON answer_links (secret_sha256);
CREATE INDEX answer_links_of_chat ON answer_links (chat_id);
CREATE INDEX answer_links_of_user ON answer_links (user_id);
CREATE INDEX answer_links_expired ON answer_links (expires_at);

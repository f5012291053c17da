-- Public links -----------------------------------------------------------------------------------------------

-- A chat that everyone who has the link may read. The secret of the link is stored as a digest. `shown` are
-- the ids of the messages that the chat had when the link was made or updated; of these, those are sent that
-- the chat still shows. So nothing newer leaves by the link, and what the owner removes is gone there too.
CREATE TABLE public_links (
    id            uuid PRIMARY KEY,
    chat_id       uuid NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
    secret_sha256 bytea NOT NULL,
    shown         int8multirange NOT NULL,
    with_tools    boolean NOT NULL,
    with_files    boolean NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at    timestamptz NOT NULL,
    last_read_at  timestamptz,

    CONSTRAINT a_public_link_has_a_digest CHECK (octet_length(secret_sha256) = 32)
);
CREATE UNIQUE INDEX public_links_by_secret ON public_links (secret_sha256);
CREATE INDEX public_links_of_chat ON public_links (chat_id, created_at);
CREATE INDEX public_links_by_time ON public_links (created_at, id);
CREATE INDEX public_links_expired ON public_links (expires_at);

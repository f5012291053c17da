-- The search index over titles (message 0) and messages, filled behind the commits. `words` lies
-- beside the row, so that a search that finds many entries reads few pages.
CREATE TABLE chat_search (
    chat_id      uuid NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
    message_id   bigint NOT NULL,
    root_chat_id uuid NOT NULL,
    owner_id     uuid NOT NULL,
    at           timestamptz NOT NULL,
    words        tsvector NOT NULL,
    PRIMARY KEY (chat_id, message_id)
) WITH (toast_tuple_target = 128);
CREATE INDEX chat_search_words ON chat_search USING gin (words);

-- What the index has of a chat: its changes up to a message of a version, and its title. A title of
-- NULL asks for the title to be read again.
CREATE TABLE chat_search_state (
    chat_id    uuid PRIMARY KEY REFERENCES chats (id) ON DELETE CASCADE,
    version    bigint NOT NULL,
    message_id bigint NOT NULL,
    title      text
);
CREATE INDEX chat_search_state_renamed ON chat_search_state (chat_id) WHERE title IS NULL;

-- Chats that changed before this time are in the index.
CREATE TABLE chat_search_progress (
    one   boolean PRIMARY KEY DEFAULT true CHECK (one),
    until timestamptz NOT NULL
);
INSERT INTO chat_search_progress (until) VALUES ('epoch');

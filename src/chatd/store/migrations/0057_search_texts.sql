-- The text of titles (message 0) and messages as the search compares it, and the numbers of its
-- pieces, by which the index finds it. Filled behind the commits; chats of before in the background.
-- Texts and numbers lie beside the row, so that a search that finds many entries reads few pages.
CREATE TABLE chat_search_texts (
    chat_id      uuid NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
    message_id   bigint NOT NULL,
    root_chat_id uuid NOT NULL,
    owner_id     uuid NOT NULL,
    at           timestamptz NOT NULL,
    text         text COLLATE "C" NOT NULL,
    grams        integer[] NOT NULL,
    PRIMARY KEY (chat_id, message_id)
) WITH (toast_tuple_target = 128);
ALTER TABLE chat_search_texts ALTER COLUMN grams SET STORAGE EXTERNAL;
-- No list of pending entries: every search would read all of it.
CREATE INDEX chat_search_texts_grams ON chat_search_texts USING gin (grams) WITH (fastupdate = off);
CREATE INDEX chat_search_texts_newest ON chat_search_texts (root_chat_id, at, message_id);
CREATE INDEX chat_search_texts_of_owner ON chat_search_texts (owner_id, at);

-- What of a chat is in chat_search_texts: its changes up to text_version, of which those up to
-- text_message_id if there are more; and its title. Replicas of the previous release keep
-- `version`, `message_id` and `title` for chat_search.
ALTER TABLE chat_search_state
    ADD COLUMN text_version bigint NOT NULL DEFAULT 0,
    ADD COLUMN text_message_id bigint,
    ADD COLUMN text_title text;
CREATE INDEX chat_search_state_retitled ON chat_search_state (chat_id)
    WHERE text_version > 0 AND (text_title IS NULL OR title <> text_title);
ALTER TABLE chat_search_progress ADD COLUMN texts_until timestamptz NOT NULL DEFAULT 'epoch';

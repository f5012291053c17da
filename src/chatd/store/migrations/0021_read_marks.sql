-- The last message that a user has read of a chat. Takes the place of chats.last_read_message_id.
CREATE TABLE chat_read_marks (
    user_id    uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    chat_id    uuid NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
    message_id bigint NOT NULL,
    read_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (user_id, chat_id)
);
CREATE INDEX chat_read_marks_chat ON chat_read_marks (chat_id);

-- What exists today counts as read.
INSERT INTO chat_read_marks (user_id, chat_id, message_id)
SELECT owner_id, id, next_message_id - 1 FROM chats WHERE next_message_id > 1;

-- Versions of messages ------------------------------------------------------------------------------------

-- An edited or repeated user message begins a new line of messages, which replaces the line of the old one.
-- One row for the first message of each line; `group_id` is the id of the first version. `hidden` are the
-- messages that were deleted when the line was replaced, and `line_end` what the chat's row said of it
-- then; both are NULL while the line is not replaced. Retention deletes the row with the content of the
-- line's messages.
CREATE TABLE chat_message_versions (
    chat_id    uuid NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
    message_id bigint NOT NULL,
    group_id   bigint NOT NULL,
    hidden     bigint[],
    line_end   jsonb,
    PRIMARY KEY (chat_id, message_id),

    CONSTRAINT a_hidden_line_has_an_end CHECK ((hidden IS NULL) = (line_end IS NULL))
);

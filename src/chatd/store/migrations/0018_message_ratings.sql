-- Ratings of answers -----------------------------------------------------------------------------------------

-- What a user thinks of an answer. A version of an answer is another message, with a rating of its own.
CREATE TABLE message_ratings (
    chat_id    uuid NOT NULL,
    message_id bigint NOT NULL,
    user_id    uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    value      text NOT NULL,
    comment    text NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (chat_id, message_id, user_id),
    FOREIGN KEY (chat_id, message_id) REFERENCES chat_messages (chat_id, id) ON DELETE CASCADE,

    CONSTRAINT a_rating_is_up_or_down CHECK (value IN ('up', 'down')),
    CONSTRAINT a_rating_has_a_short_comment CHECK (length(comment) <= 2000)
);
CREATE INDEX message_ratings_of_user ON message_ratings (user_id);
CREATE INDEX message_ratings_by_time ON message_ratings (updated_at, chat_id, message_id);

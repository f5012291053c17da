-- outside a transaction
-- The prompts of a user, newest first. Only the message that starts or steers a turn has an entry.
CREATE INDEX CONCURRENTLY IF NOT EXISTS chat_messages_prompts
    ON chat_messages (created_by, created_at, chat_id, id)
    WHERE role = 'user' AND NOT deleted AND visibility <> 'model' AND NOT compressed;

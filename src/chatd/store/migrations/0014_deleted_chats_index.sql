-- outside a transaction
-- The chats that the periodic task removes.
CREATE INDEX CONCURRENTLY IF NOT EXISTS chats_deleted ON chats (deleted_at)
    WHERE deleted_at IS NOT NULL AND parent_chat_id IS NULL;

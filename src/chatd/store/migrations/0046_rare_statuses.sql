-- outside a transaction
-- A list by a status that few chats have does not read the others.
CREATE INDEX CONCURRENTLY IF NOT EXISTS chats_rare_statuses
    ON chats (owner_id, archived, status, updated_at DESC, id DESC)
    WHERE parent_chat_id IS NULL AND status <> 'waiting';

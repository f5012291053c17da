-- outside a transaction
CREATE INDEX CONCURRENTLY IF NOT EXISTS chats_of_project ON chats (project_id, updated_at DESC, id DESC)
    WHERE project_id IS NOT NULL;

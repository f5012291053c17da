-- outside a transaction
-- replaces 08f0f07517d1d5dbc62fb5d087f1174cd0a358db3b9096bbc4e02a81b218a458
-- When a message was deleted, so that its content can be removed some time later. The row stays:
-- viewers that resume learn from it that the message is gone. NULL again when the content is removed.
ALTER TABLE chat_messages ADD COLUMN IF NOT EXISTS deleted_at timestamptz;
UPDATE chat_messages SET deleted_at = now() WHERE deleted AND deleted_at IS NULL;
CREATE INDEX CONCURRENTLY IF NOT EXISTS chat_messages_deleted ON chat_messages (deleted_at)
    WHERE deleted_at IS NOT NULL;
CREATE INDEX CONCURRENTLY IF NOT EXISTS workspaces_deleted ON workspaces (last_used_at)
    WHERE deleted;
CREATE INDEX CONCURRENTLY IF NOT EXISTS workspace_builds_completed
    ON workspace_builds (completed_at) WHERE completed_at IS NOT NULL;

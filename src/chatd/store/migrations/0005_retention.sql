-- When a message was deleted, so that its content can be removed some time later. The row stays:
-- viewers that resume learn from it that the message is gone. NULL again when the content is removed.
ALTER TABLE chat_messages ADD COLUMN deleted_at timestamptz;
UPDATE chat_messages SET deleted_at = now() WHERE deleted;
CREATE INDEX chat_messages_deleted ON chat_messages (deleted_at) WHERE deleted_at IS NOT NULL;
CREATE INDEX workspaces_deleted ON workspaces (last_used_at) WHERE deleted;
CREATE INDEX workspace_builds_completed ON workspace_builds (completed_at)
    WHERE completed_at IS NOT NULL;

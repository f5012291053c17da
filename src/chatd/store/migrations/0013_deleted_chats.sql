-- Chats that a user deleted: invisible at once, and removed with their tree by a periodic task.
ALTER TABLE chats ADD COLUMN deleted_at timestamptz;
ALTER TABLE chats ADD CONSTRAINT deleted_is_archived
    CHECK (deleted_at IS NULL OR archived) NOT VALID;

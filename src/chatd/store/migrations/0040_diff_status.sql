-- What a chat has changed in the repositories of its workspace, as last seen. It has no version.
ALTER TABLE chats ADD COLUMN diff_status jsonb;

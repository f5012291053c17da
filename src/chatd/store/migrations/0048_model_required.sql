-- A chat that is not answered by another model if its own was removed.
ALTER TABLE chats ADD COLUMN model_required boolean NOT NULL DEFAULT false;

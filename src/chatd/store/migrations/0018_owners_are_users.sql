-- Rows that were written before the foreign keys existed. Old replicas go on writing meanwhile.
ALTER TABLE chats VALIDATE CONSTRAINT chats_have_an_owner;
ALTER TABLE workspaces VALIDATE CONSTRAINT workspaces_have_an_owner;

-- Which chats use a workspace. Of no step's columns, so that a step's commit leaves it alone.
CREATE INDEX chats_workspace ON chats (workspace_id) WHERE workspace_id IS NOT NULL;

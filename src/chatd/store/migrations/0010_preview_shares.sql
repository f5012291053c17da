-- Ports of a workspace whose previews the readers of a chat may open, at the request of its owner. It counts
-- only while the chat has this workspace.
CREATE TABLE preview_shares (
    chat_id      uuid NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
    workspace_id uuid NOT NULL REFERENCES workspaces (id) ON DELETE CASCADE,
    port         integer NOT NULL CHECK (port BETWEEN 1 AND 65535),
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (chat_id, port)
);
CREATE INDEX preview_shares_of_workspace ON preview_shares (workspace_id, port);

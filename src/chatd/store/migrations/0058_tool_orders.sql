-- The MCP servers whose tools a chat has had, in the order in which it got them: the tools of a new
-- one follow those that providers have cached. `servers` are ids, or names of the workspace's own.
CREATE TABLE chat_tool_orders (
    chat_id uuid PRIMARY KEY REFERENCES chats (id) ON DELETE CASCADE,
    servers text[] NOT NULL
);

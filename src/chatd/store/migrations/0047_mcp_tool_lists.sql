-- The tools that an MCP server listed last, so that a chat keeps them while the server does not answer.
-- A server that users reach with a token of their own has a list for each of them, others have one.
CREATE TABLE mcp_tool_lists (
    server_id      uuid NOT NULL REFERENCES mcp_servers (id) ON DELETE CASCADE,
    user_id        uuid REFERENCES users (id) ON DELETE CASCADE,
    server_version bigint NOT NULL,
    tools          bytea NOT NULL,
    updated_at     timestamptz NOT NULL DEFAULT clock_timestamp(),

    CONSTRAINT one_mcp_tool_list UNIQUE NULLS NOT DISTINCT (server_id, user_id)
);

-- outside a transaction
-- The few outputs of tools whose step may not be committed: found by the next tool of the chat, and
-- by the maintenance that forgets them.
CREATE INDEX CONCURRENTLY IF NOT EXISTS chat_tool_runs_kept ON chat_tool_runs (chat_id, started_at)
    WHERE output IS NOT NULL;

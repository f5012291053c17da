-- A turn that waits for subagents: the chats, and for how long. Such a chat runs without a worker, and its
-- runnable_at is the end of the wait; the end of a subagent's turn makes it runnable earlier.
ALTER TABLE chats ADD COLUMN agent_wait json;

-- Models of subagents, by their type.
ALTER TABLE model_overrides DROP CONSTRAINT override_task_is_known;
ALTER TABLE model_overrides ADD CONSTRAINT override_task_is_known
    CHECK (task IN ('title', 'compaction', 'general', 'explore'));

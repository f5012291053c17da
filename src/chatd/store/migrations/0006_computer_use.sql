-- Subagents of type `computer_use` have a model of their own.
ALTER TABLE model_overrides DROP CONSTRAINT override_task_is_known;
ALTER TABLE model_overrides ADD CONSTRAINT override_task_is_known
    CHECK (task IN ('title', 'compaction', 'general', 'explore', 'computer_use'));

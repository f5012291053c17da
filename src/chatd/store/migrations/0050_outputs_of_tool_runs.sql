-- The output of a tool that must not run twice, from its end until the results of its step are
-- committed: a worker that takes the step over finds it instead of an unknown outcome.
ALTER TABLE chat_tool_runs ADD COLUMN output text;

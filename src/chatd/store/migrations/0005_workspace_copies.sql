-- A fork of a chat may have a copy of its workspace: the workspace whose files the start copies. A start
-- that did not succeed leaves the workspace without them, so the next one copies again.
ALTER TABLE workspace_builds ADD COLUMN copied_from uuid;

-- Who may create workspaces of a template, by the names of users (or their addresses) and groups.
-- Both empty: every user.
ALTER TABLE templates
    ADD COLUMN users  text[] NOT NULL DEFAULT '{}',
    ADD COLUMN groups text[] NOT NULL DEFAULT '{}';

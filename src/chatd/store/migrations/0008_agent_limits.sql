-- What the host enforces for the workspace of an agent: NULL where the backend did not say.
ALTER TABLE workspace_agents
    ADD COLUMN network text CHECK (network IN ('none', 'full')),
    ADD COLUMN limits json;

-- A workspace may reach named hosts only, through a proxy at its runner.
ALTER TABLE workspace_agents DROP CONSTRAINT workspace_agents_network_check;
ALTER TABLE workspace_agents ADD CONSTRAINT workspace_agents_network_check
    CHECK (network IN ('none', 'allow', 'full'));

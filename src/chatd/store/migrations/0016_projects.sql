-- Projects -----------------------------------------------------------------------------------------------

-- A project keeps chats together, with instructions and files that their models are given, and the model
-- and template of new chats. `version` counts its changes.
CREATE TABLE projects (
    id              uuid PRIMARY KEY,
    name            text NOT NULL CHECK (name <> '' AND length(name) <= 100),
    instructions    text NOT NULL DEFAULT '' CHECK (octet_length(instructions) <= 32768),
    model_config_id uuid,
    template_id     uuid REFERENCES templates (id) ON DELETE SET NULL,
    version         bigint NOT NULL DEFAULT 1,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at      timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Who belongs to a project. All of them read its chats; writers also put chats of their own into it and
-- change it; the owner also decides who belongs to it.
CREATE TABLE project_members (
    project_id uuid NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    user_id    uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    role       text NOT NULL,
    added_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (project_id, user_id),

    CONSTRAINT project_role_is_known CHECK (role IN ('owner', 'writer', 'reader'))
);
CREATE UNIQUE INDEX project_members_one_owner ON project_members (project_id) WHERE role = 'owner';
CREATE INDEX project_members_of_user ON project_members (user_id, project_id);

-- The files of a project, each under a name of its own. They belong to the members who added them.
CREATE TABLE project_files (
    project_id uuid NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    file_id    uuid NOT NULL REFERENCES files (id),
    name       text NOT NULL CHECK (name <> ''),
    added_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (project_id, file_id),

    CONSTRAINT a_project_has_a_file_name_once UNIQUE (project_id, name)
);
CREATE INDEX project_files_of_file ON project_files (file_id);

-- The project of a chat and of its subagents. Its owner belongs to the project as a writer or as the owner.
ALTER TABLE chats ADD COLUMN project_id uuid;
ALTER TABLE chats ADD CONSTRAINT chats_belong_to_a_project
    FOREIGN KEY (project_id) REFERENCES projects (id) ON DELETE SET NULL NOT VALID;

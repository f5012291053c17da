-- The project of a schedule's chats. The index serves the deletion of a project.
ALTER TABLE schedules ADD COLUMN project_id uuid REFERENCES projects (id) ON DELETE SET NULL;
CREATE INDEX schedules_of_project ON schedules (project_id) WHERE project_id IS NOT NULL;

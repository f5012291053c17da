-- Memory ------------------------------------------------------------------------------------------------

-- Notes that are told to the models of a user's chats, or of a project's. A model proposes, and only the
-- user `owner_id` accepts: an accepted proposal is the kept note, so it is kept once. `chat_id` is the chat
-- whose model proposed it. `place` orders the kept notes of a user, and those of a project.
CREATE TABLE memory_notes (
    id         uuid PRIMARY KEY,
    owner_id   uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    project_id uuid REFERENCES projects (id) ON DELETE CASCADE,
    chat_id    uuid REFERENCES chats (id) ON DELETE SET NULL,
    state      text NOT NULL,
    text       text NOT NULL,
    enabled    boolean NOT NULL DEFAULT true,
    place      bigint NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),

    CONSTRAINT the_state_of_a_note_is_known CHECK (state IN ('proposed', 'kept', 'dismissed')),
    CONSTRAINT a_note_is_short CHECK (text <> '' AND length(text) <= 500),
    CONSTRAINT only_kept_notes_are_of_a_project CHECK (project_id IS NULL OR state = 'kept')
);
CREATE INDEX memory_notes_of_user ON memory_notes (owner_id, state, place, id);
CREATE INDEX memory_notes_of_project ON memory_notes (project_id, place, id) WHERE project_id IS NOT NULL;
CREATE INDEX memory_notes_of_chat ON memory_notes (chat_id) WHERE chat_id IS NOT NULL;

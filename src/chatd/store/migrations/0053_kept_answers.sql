-- What a worker that died or released its chat had said at the step in progress, as the next worker found it. The journal
-- of live parts forgets within the hour and when the database crashes; an outage of the provider lasts longer.
CREATE TABLE kept_answers (
    chat_id         uuid PRIMARY KEY REFERENCES chats ON DELETE CASCADE,
    history_version bigint NOT NULL,
    attempt         integer NOT NULL,
    parts           bytea NOT NULL
);

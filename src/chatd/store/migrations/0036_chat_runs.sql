-- A record of the attempts at the turns of a chat: which worker ran it, from when to when, and how the
-- attempt ended. The statements that give a chat an owner and take it away write these rows; the newest
-- 200 of a chat are kept. `takeover` tells how the death of the worker before was noticed.
CREATE TABLE chat_runs (
    chat_id          uuid NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
    run_no           bigint NOT NULL,
    turn_no          bigint NOT NULL,
    turn_message_id  bigint,
    epoch            bigint NOT NULL,
    attempt          integer NOT NULL,
    worker_id        uuid NOT NULL,
    started_at       timestamptz NOT NULL DEFAULT now(),
    first_message_id bigint NOT NULL,
    takeover         jsonb,
    ended_at         timestamptz,
    end_message_id   bigint,
    outcome          text,
    detail           json,
    PRIMARY KEY (chat_id, run_no)
);

-- `lost` is set from the death of the owner until the next worker has the chat; `takeover` is the last
-- takeover, which viewers are shown.
ALTER TABLE chats
    ADD COLUMN run_no bigint NOT NULL DEFAULT 0,
    ADD COLUMN turn_no bigint NOT NULL DEFAULT 0,
    ADD COLUMN lost jsonb,
    ADD COLUMN takeover jsonb;

ALTER TABLE chat_workers
    ADD COLUMN host text NOT NULL DEFAULT '',
    ADD COLUMN version text NOT NULL DEFAULT '',
    ADD COLUMN slots integer NOT NULL DEFAULT 0,
    ADD COLUMN child_slots integer NOT NULL DEFAULT 0;

-- Workers that have ended, so that the record of attempts can name their hosts.
CREATE TABLE former_workers (
    worker_id  uuid PRIMARY KEY,
    host       text NOT NULL,
    version    text NOT NULL,
    started_at timestamptz NOT NULL,
    renewed_at timestamptz NOT NULL,
    deleted_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX former_workers_by_time ON former_workers (deleted_at);

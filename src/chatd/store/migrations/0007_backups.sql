-- Backups and restores --------------------------------------------------------------------------------

-- Every attempt at a scheduled backup: all replicas look here whether one is due. None is copied into a
-- backup itself.
CREATE TABLE backups (
    id         uuid PRIMARY KEY,
    host       text NOT NULL,
    file       text NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now(),
    ended_at   timestamptz,
    bytes      bigint,
    error      text,

    CONSTRAINT a_whole_backup_has_a_size CHECK ((bytes IS NOT NULL) = (ended_at IS NOT NULL AND error IS NULL))
);
CREATE INDEX backups_by_time ON backups (started_at);

-- The backup that this database was restored from. Until an administrator confirms it, the deployment is a
-- copy that may stand beside the original: it runs no chats, sends nothing and deletes nothing.
CREATE TABLE restores (
    one          boolean PRIMARY KEY DEFAULT true CHECK (one),
    backup_id    uuid NOT NULL,
    made_at      timestamptz NOT NULL,
    made_on      text NOT NULL,
    restored_at  timestamptz NOT NULL DEFAULT now(),
    confirmed_at timestamptz
);

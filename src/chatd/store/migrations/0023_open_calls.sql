-- Model calls that have no usage event yet. A worker writes the row before it sends the request; the
-- statement that writes the usage event deletes it. `record` tells what another worker needs to write
-- the event if this one dies, `reserved_micros` what the call costs at least (NULL: no price).
CREATE TABLE open_calls (
    call_id         uuid PRIMARY KEY,
    at              timestamptz NOT NULL DEFAULT now(),
    owner_id        uuid NOT NULL,
    chat_id         uuid NOT NULL,
    root_chat_id    uuid NOT NULL,
    worker_id       uuid NOT NULL,
    epoch           bigint NOT NULL,
    history_version bigint NOT NULL,
    attempt         integer NOT NULL,
    reserved_micros bigint,
    record          json NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
CREATE INDEX open_calls_owner ON open_calls (owner_id);
CREATE INDEX open_calls_family ON open_calls (root_chat_id);

-- What a running process says of itself, beside the keys that it holds: its version, and digests of the
-- settings that all replicas should have alike. Older replicas say nothing.
ALTER TABLE secret_key_holders
    ADD COLUMN version  text NOT NULL DEFAULT '',
    ADD COLUMN settings jsonb NOT NULL DEFAULT '{}';

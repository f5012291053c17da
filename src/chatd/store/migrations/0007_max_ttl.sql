-- How long a workspace of a template may run at most, even if it is used; 0: without limit.
ALTER TABLE templates ADD COLUMN max_ttl_s integer NOT NULL DEFAULT 0,
    ADD CONSTRAINT template_max_ttl_is_not_negative CHECK (max_ttl_s >= 0);

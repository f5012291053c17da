-- outside a transaction
-- replaces f97f10d66ec91d9c2626869e96cd2f4b2ddcd2ba08e5d04955f86ecc9e001352
-- A call has one usage event, found by its id: the call's own worker replaces the estimate that
-- another worker recorded for it.
ALTER TABLE usage_events
    ADD COLUMN IF NOT EXISTS web_searches integer NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS estimated    boolean NOT NULL DEFAULT false,
    ADD COLUMN IF NOT EXISTS call_id      uuid;
CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS usage_events_call ON usage_events (call_id)
    WHERE call_id IS NOT NULL;

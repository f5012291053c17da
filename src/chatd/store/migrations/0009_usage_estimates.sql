-- A call has one usage event, found by its id: the call's own worker replaces the estimate that
-- another worker recorded for it.
ALTER TABLE usage_events
    ADD COLUMN web_searches integer NOT NULL DEFAULT 0,
    ADD COLUMN estimated    boolean NOT NULL DEFAULT false,
    ADD COLUMN call_id      uuid;
CREATE UNIQUE INDEX usage_events_call ON usage_events (call_id) WHERE call_id IS NOT NULL;

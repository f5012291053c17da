-- outside a transaction
-- Sums of a user's costs, by chat and for spend limits, are read from the index alone.
CREATE INDEX CONCURRENTLY IF NOT EXISTS usage_events_owner_sums ON usage_events (owner_id, at)
    INCLUDE (root_chat_id, cost_micros, input_tokens, output_tokens, cache_read_tokens,
        cache_creation_tokens);
DROP INDEX CONCURRENTLY IF EXISTS usage_events_owner;

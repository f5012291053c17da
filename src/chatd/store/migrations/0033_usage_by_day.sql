-- outside a transaction
-- The costs of all users between two days.
CREATE INDEX CONCURRENTLY IF NOT EXISTS usage_daily_by_day ON usage_daily (day);

-- outside a transaction
-- replaces 6604fa95053c5eb7e657bee9f48b29bf12d04f71f1153679e82233515f14c919
-- Failed model calls, retry delays and deaths of workers since the chat's history last changed.
ALTER TABLE chats ADD COLUMN IF NOT EXISTS setbacks json;

-- Chats whose workers died repeatedly: a worker takes one of them at a time.
CREATE INDEX CONCURRENTLY IF NOT EXISTS chats_suspects ON chats (runnable_at)
    WHERE runnable_at IS NOT NULL AND orphan_count > 1;

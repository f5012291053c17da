-- outside a transaction
-- Where the search index goes on. The start and the end of a turn change it, other commits do not.
CREATE INDEX CONCURRENTLY IF NOT EXISTS chats_updated ON chats (updated_at);

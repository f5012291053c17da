-- Failed model calls, retry delays and deaths of workers since the chat's history last changed.
ALTER TABLE chats ADD COLUMN setbacks json;

-- Chats whose workers died repeatedly: a worker takes one of them at a time.
CREATE INDEX chats_suspects ON chats (runnable_at)
    WHERE runnable_at IS NOT NULL AND orphan_count > 1;

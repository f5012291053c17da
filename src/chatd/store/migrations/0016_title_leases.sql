-- Title generations that users asked for. A row older than its lease is taken by the next request.
CREATE TABLE chat_title_leases (
    chat_id uuid PRIMARY KEY REFERENCES chats (id) ON DELETE CASCADE,
    id      uuid NOT NULL,
    until   timestamptz NOT NULL
);

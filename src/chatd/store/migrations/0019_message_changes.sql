-- The change that wrote the message's revision: it shows whether a viewer that was away has seen
-- this past of the chat or one that the database lost in a failover. Null: older than this column.
ALTER TABLE chat_messages ADD COLUMN change_id bigint;

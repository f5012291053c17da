-- Where a fork comes from. No reference: the source may be deleted.
ALTER TABLE chats ADD COLUMN forked_from_chat_id uuid;
ALTER TABLE chats ADD COLUMN forked_from_message_id bigint;

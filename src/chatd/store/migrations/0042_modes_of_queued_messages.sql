-- The mode that a chat gets when the message joins its history: 'plan', 'off', or no change.
ALTER TABLE chat_queued_messages ADD COLUMN mode text;

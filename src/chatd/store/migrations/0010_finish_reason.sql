-- Why the model's answer ended. Null: not an answer, interrupted, or older than this column.
ALTER TABLE chat_messages ADD COLUMN finish_reason text;

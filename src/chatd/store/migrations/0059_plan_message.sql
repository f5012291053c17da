-- The message with the plan that the chat proposed last: the chat waits for a decision of a person
-- until its next turn.
ALTER TABLE chats ADD COLUMN plan_message_id bigint;

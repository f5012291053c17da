-- The system messages before a summary, which a prompt needs without the others there.
CREATE INDEX chat_messages_system ON chat_messages (chat_id, id)
    WHERE role = 'system' AND NOT compressed AND NOT deleted;

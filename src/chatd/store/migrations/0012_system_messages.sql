-- outside a transaction
-- replaces e41966891f91136c6d7bb2cc01f1d47983ed71ead86d1e223771320b0d1c6ee4
-- The system messages before a summary, which a prompt needs without the others there.
CREATE INDEX CONCURRENTLY IF NOT EXISTS chat_messages_system ON chat_messages (chat_id, id)
    WHERE role = 'system' AND NOT compressed AND NOT deleted;

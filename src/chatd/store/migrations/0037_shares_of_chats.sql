-- Whether a chat is shared, and the shares of a chat that is removed.
CREATE INDEX chat_shares_of_chat ON chat_shares (chat_id);

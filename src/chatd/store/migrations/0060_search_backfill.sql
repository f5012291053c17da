-- Chats of before an upgrade are indexed newest first: those that changed at this time or before are
-- left. Null: not begun. 'epoch': none is left.
ALTER TABLE chat_search_progress ADD COLUMN texts_left_until timestamptz;
UPDATE chat_search_progress SET texts_left_until = 'epoch' WHERE NOT EXISTS (SELECT FROM chats);

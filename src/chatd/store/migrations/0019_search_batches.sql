-- Search ---------------------------------------------------------------------------------------------

-- Each batch of the index leaves its entries in the list of pending ones, and moves them into the index
-- itself before it commits: sorted, so that a piece that many messages share is looked up once. A search
-- finds the list empty, or with the entries of one batch.
ALTER INDEX chat_search_texts_grams SET (fastupdate = on);

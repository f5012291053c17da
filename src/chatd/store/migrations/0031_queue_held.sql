-- The interrupt that is in progress leaves the queue waiting.
ALTER TABLE chats ADD COLUMN queue_held boolean NOT NULL DEFAULT false;
ALTER TABLE chats ADD CONSTRAINT only_an_interrupt_holds_the_queue
    CHECK (NOT queue_held OR status = 'interrupting') NOT VALID;

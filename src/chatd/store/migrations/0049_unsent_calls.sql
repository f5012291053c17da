-- Whether the request of a model call may have been sent. The record is written before the spend limits are checked, and
-- marked when the request is about to be sent: a call whose worker died in between cost nothing. Replicas of the previous
-- release write no mark, so that their calls count as sent.
ALTER TABLE open_calls ADD COLUMN sent boolean NOT NULL DEFAULT true;

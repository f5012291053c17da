-- The context window of a model as its provider's refusals of long prompts have taught it.
-- `learned_is_bound`: they named no number, so that it is the size of the shortest refused prompt.
ALTER TABLE model_configs
    ADD COLUMN learned_limit    integer CONSTRAINT a_learned_limit_is_positive CHECK (learned_limit > 0),
    ADD COLUMN learned_is_bound boolean NOT NULL DEFAULT false;

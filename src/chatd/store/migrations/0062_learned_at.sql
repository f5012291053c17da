-- When a model's window was learned: a wrong one keeps prompts so short that nothing refutes it, so
-- it is forgotten after some days. Null: by a replica of the previous release.
ALTER TABLE model_configs ADD COLUMN learned_at timestamptz;
UPDATE model_configs SET learned_at = now() WHERE learned_limit IS NOT NULL;

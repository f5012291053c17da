-- Which running process has which models in its settings. A model is enabled while any of them
-- declares it. `has_models` is false if the settings name no model: such a process has only the demo.
CREATE TABLE model_declarations (
    process_id    uuid PRIMARY KEY,
    providers     uuid[] NOT NULL,
    models        uuid[] NOT NULL,
    default_model uuid,
    has_models    boolean NOT NULL,
    declared_at   timestamptz NOT NULL DEFAULT now(),
    renewed_at    timestamptz NOT NULL DEFAULT now()
);

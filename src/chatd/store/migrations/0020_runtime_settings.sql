-- Settings that are changed over the API. `version` counts the changes of a document.
CREATE TABLE deployment_settings (
    one        boolean PRIMARY KEY DEFAULT true CHECK (one),
    version    bigint NOT NULL,
    document   json NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    updated_by uuid
);

CREATE TABLE user_settings (
    user_id    uuid PRIMARY KEY REFERENCES users (id) ON DELETE CASCADE,
    version    bigint NOT NULL,
    document   json NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now()
);

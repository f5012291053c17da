-- Web push: a subscription of a browser is a webhook of the kind 'push'. Its URL is the endpoint, its
-- secret the browser's keys. One key signs for all replicas.
ALTER TABLE webhooks
    ADD COLUMN kind text NOT NULL DEFAULT 'http',
    ADD CONSTRAINT known_kind_of_webhook CHECK (kind IN ('http', 'push'));

CREATE TABLE push_keys (
    id                  uuid PRIMARY KEY,
    name                text NOT NULL UNIQUE CHECK (name = 'vapid'),
    private_key         text NOT NULL,
    private_key_key_id  text GENERATED ALWAYS AS (split_part(private_key, '.', 2)) STORED NOT NULL
                        REFERENCES secret_keys (id),
    created_at          timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX push_keys_sealed_by ON push_keys (private_key_key_id, id);

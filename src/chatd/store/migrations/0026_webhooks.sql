-- Webhooks of users, and the deliveries that are due. The commit that ends a turn inserts its
-- deliveries, so none is lost; a delivery stays until it was answered or given up.
CREATE TABLE webhooks (
    id             uuid PRIMARY KEY,
    owner_id       uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    url            text NOT NULL,
    events         text[] NOT NULL,
    secret         text NOT NULL,
    secret_key_id  text GENERATED ALWAYS AS (split_part(secret, '.', 2)) STORED NOT NULL
                   REFERENCES secret_keys (id),
    enabled        boolean NOT NULL DEFAULT true,
    disabled_by    text,
    failing_since  timestamptz,
    created_at     timestamptz NOT NULL DEFAULT now(),
    updated_at     timestamptz NOT NULL DEFAULT now(),

    CONSTRAINT webhooks_have_events CHECK (cardinality(events) > 0),
    CONSTRAINT enabled_webhooks_have_no_reason CHECK (NOT enabled OR disabled_by IS NULL)
);
COMMENT ON COLUMN webhooks.disabled_by IS 'why chatd disabled it; NULL if its owner did';
CREATE INDEX webhooks_by_owner ON webhooks (owner_id, created_at, id);
CREATE INDEX webhooks_sealed_by ON webhooks (secret_key_id, id);

CREATE TABLE webhook_deliveries (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    webhook_id   uuid NOT NULL REFERENCES webhooks (id) ON DELETE CASCADE,
    event        text NOT NULL,
    chat_id      uuid,
    version      bigint,
    title        text,
    labels       jsonb,
    error        json,
    created_at   timestamptz NOT NULL DEFAULT now(),
    attempts     integer NOT NULL DEFAULT 0,
    due_at       timestamptz DEFAULT now(),
    ended_at     timestamptz,
    delivered    boolean NOT NULL DEFAULT false,
    reply_status integer,
    failure      text,

    CONSTRAINT a_delivery_is_due_or_ended CHECK ((due_at IS NULL) = (ended_at IS NOT NULL))
);
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (webhook_id, due_at)
    WHERE due_at IS NOT NULL;
CREATE INDEX webhook_deliveries_log ON webhook_deliveries (webhook_id, id DESC);
CREATE INDEX webhook_deliveries_ended ON webhook_deliveries (ended_at) WHERE ended_at IS NOT NULL;

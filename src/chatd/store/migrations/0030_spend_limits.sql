-- Spend limits that administrators set over the API. Without a row in default_spend_limit the default
-- is that of the settings; a row without an amount means that there is no default.
CREATE TABLE default_spend_limit (
    one        boolean PRIMARY KEY DEFAULT true,
    micros     bigint,
    period     text NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    updated_by uuid,

    CONSTRAINT default_spend_limit_is_one_row CHECK (one),
    CONSTRAINT default_spend_limit_is_positive CHECK (micros > 0),
    CONSTRAINT spend_period_is_known CHECK (period IN ('day', 'week', 'month'))
);

CREATE TABLE user_spend_limits (
    user_id    uuid PRIMARY KEY REFERENCES users (id) ON DELETE CASCADE,
    micros     bigint NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),

    CONSTRAINT user_spend_limit_is_positive CHECK (micros > 0)
);

CREATE TABLE group_spend_limits (
    group_id   uuid PRIMARY KEY REFERENCES groups (id) ON DELETE CASCADE,
    micros     bigint NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),

    CONSTRAINT group_spend_limit_is_positive CHECK (micros > 0)
);

-- Which warnings a user has got, so that each is given once in a period.
CREATE TABLE spend_warnings (
    user_id      uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    period_start timestamptz NOT NULL,
    percent      smallint NOT NULL,
    spent_micros bigint NOT NULL,
    limit_micros bigint NOT NULL,
    at           timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (user_id, period_start, percent)
);

-- The budget of a chat and its subagents, set when the root is created.
ALTER TABLE chats ADD COLUMN max_cost_micros bigint;

-- Which tool calls run, are asked for or are denied: one policy of the deployment, of each user, of each
-- workspace template, and of each root chat with its subagents.
CREATE TABLE tool_policies (
    user_id     uuid UNIQUE REFERENCES users (id) ON DELETE CASCADE,
    template_id uuid UNIQUE REFERENCES templates (id) ON DELETE CASCADE,
    chat_id     uuid UNIQUE REFERENCES chats (id) ON DELETE CASCADE,
    version     bigint NOT NULL DEFAULT 1,
    policy      jsonb NOT NULL,
    updated_at  timestamptz NOT NULL DEFAULT now(),
    updated_by  uuid,

    CONSTRAINT a_tool_policy_has_one_subject
        CHECK (num_nonnulls(user_id, template_id, chat_id) <= 1),
    CONSTRAINT a_tool_policy_has_few_rules
        CHECK (jsonb_array_length(coalesce(policy -> 'rules', '[]')) <= 200)
);
CREATE UNIQUE INDEX tool_policies_of_the_deployment ON tool_policies ((true))
    WHERE user_id IS NULL AND template_id IS NULL AND chat_id IS NULL;

-- Who answered which call, so that a second answer can be told who was first.
CREATE TABLE chat_call_answers (
    chat_id      uuid NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
    tool_call_id text NOT NULL,
    version      bigint NOT NULL,
    decision     text NOT NULL,
    answered_by  uuid NOT NULL,
    answered_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (chat_id, tool_call_id, version)
);

-- What a turn that needs a person waits for.
ALTER TABLE webhook_deliveries ADD COLUMN action json;

import type { ListChat } from "./list-chat";

/** A chat of the list for tests. */
export function makeChat(id: string, fields: Partial<ListChat> = {}): ListChat {
  return {
    id,
    owner_id: "me",
    root_chat_id: id,
    parent_chat_id: null,
    title: `Chat ${id}`,
    status: "waiting",
    archived: false,
    last_error: null,
    pin_order: 0,
    labels: {},
    queue_len: 0,
    queue_held: false,
    version: 1,
    created_at: "2026-11-17T08:00:00Z",
    updated_at: "2026-11-17T08:00:00Z",
    last_model_config_id: null,
    reasoning_effort: null,
    workspace_id: null,
    max_cost_micros: null,
    last_message_id: null,
    last_read_message_id: null,
    has_unread: false,
    forked_from: null,
    children: [],
    ...fields,
  };
}

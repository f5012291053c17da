import { QueryClient } from "@tanstack/react-query";
import { describe, expect, it } from "vitest";
import { type ChatListPages, matches, type PublicChat } from "./chat-list";
import { CHATS_KEY, ChatListSync } from "./chat-list-sync";
import { CHAT_LIST_TOPIC, topicOf } from "./frames";

function chat(id: string, isOwner: boolean): PublicChat {
  return {
    id,
    owner_id: isOwner ? "me" : "ada",
    owner_username: isOwner ? "me" : "ada",
    is_owner: isOwner,
    shared: !isOwner,
    root_chat_id: id,
    title: id,
    status: "waiting",
    archived: false,
    last_error: null,
    pin_order: 0,
    labels: {},
    queue_len: 0,
    version: 1,
    created_at: "2026-11-16T21:30:00Z",
    updated_at: "2026-11-16T21:30:00Z",
  };
}

function listed(client: QueryClient, source: "mine" | "shared" | "all"): string[] {
  const pages = client.getQueryData<ChatListPages>([CHATS_KEY, { source }]);
  return (pages?.pages ?? []).flatMap((page) => page.items.map((item) => item.id));
}

describe("chats that others share", () => {
  it("belong to the lists with their source only", () => {
    for (const isOwner of [true, false]) {
      expect(matches(chat("a", isOwner), {})).toBe(isOwner);
      expect(matches(chat("a", isOwner), { source: "mine" })).toBe(isOwner);
      expect(matches(chat("a", isOwner), { source: "shared" })).toBe(!isOwner);
      expect(matches(chat("a", isOwner), { source: "all" })).toBe(true);
    }
  });

  it("enter the lists when they are shared and leave them when they no longer are", () => {
    const client = new QueryClient();
    for (const source of ["mine", "shared", "all"] as const) {
      const page = { items: [], has_more: false, next_cursor: null };
      client.setQueryData<ChatListPages>([CHATS_KEY, { source }], { pages: [page], pageParams: [undefined] });
    }
    const sync = new ChatListSync(client);
    sync.onEvents([{ type: "chat", kind: "created", chat: chat("theirs", false) }]);
    sync.onEvents([{ type: "chat", kind: "created", chat: chat("own", true) }]);
    expect(listed(client, "mine")).toEqual(["own"]);
    expect(listed(client, "shared")).toEqual(["theirs"]);
    expect(listed(client, "all").sort()).toEqual(["own", "theirs"]);
    const removed = { type: "removed", chat_id: "theirs" };
    expect(topicOf(removed)).toBe(CHAT_LIST_TOPIC);
    sync.onEvents([removed]);
    expect(listed(client, "shared")).toEqual([]);
    expect(listed(client, "all")).toEqual(["own"]);
  });
});

import { QueryClient } from "@tanstack/react-query";
import { afterEach, beforeEach, describe, expect, it, test, vi } from "vitest";
import { queryKeys } from "@/api/queries";
import { applyToPages, type ChatListPages, flattenPages, type ListedChat, matches, type PublicChat } from "./chat-list";
import { ChatListSync } from "./chat-list-sync";
import { CHAT_LIST_TOPIC, topicOf } from "./frames";

function chat(id: string, minute: number, more: Partial<PublicChat> = {}): PublicChat {
  const at = `2026-11-15T10:${String(minute).padStart(2, "0")}:00Z`;
  return {
    id,
    owner_id: "u",
    root_chat_id: id,
    title: id,
    status: "waiting",
    archived: false,
    last_error: null,
    pin_order: 0,
    labels: {},
    queue_len: 0,
    version: 1,
    created_at: at,
    updated_at: at,
    ...more,
  };
}

const listed = (...args: Parameters<typeof chat>): ListedChat => ({ ...chat(...args), children: [] });

function pages(hasMore: boolean, ...items: ListedChat[]): ChatListPages {
  return { pages: [{ items, has_more: hasMore, next_cursor: hasMore ? "next" : null }], pageParams: [undefined] };
}

const ids = (found: ChatListPages) => flattenPages(found, {}).map(({ id }) => id);
const changed = (one: PublicChat) => ({ chat: one, isDeleted: false });

test("a new chat comes first, a changed one moves up, a deleted one goes", () => {
  let found = pages(false, listed("b", 2), listed("a", 1));
  found = applyToPages(found, changed(chat("c", 3)), {});
  expect(ids(found)).toEqual(["c", "b", "a"]);
  found = applyToPages(found, changed(chat("a", 4, { version: 2 })), {});
  expect(ids(found)).toEqual(["a", "c", "b"]);
  found = applyToPages(found, { chat: chat("c", 3), isDeleted: true }, {});
  expect(ids(found)).toEqual(["a", "b"]);
});

test("pinned chats come first, by their place", () => {
  const found = pages(false, listed("a", 1), listed("p2", 2, { pin_order: 2 }), listed("p1", 0, { pin_order: 1 }));
  expect(ids(found)).toEqual(["p1", "p2", "a"]);
});

test("an older copy of a chat changes nothing", () => {
  const found = pages(false, listed("a", 2, { version: 5, title: "new" }));
  expect(applyToPages(found, changed(chat("a", 1, { version: 4, title: "old" })), {})).toBe(found);
});

test("an archived chat leaves the list, and comes into that of archived ones", () => {
  const archived = changed(chat("a", 1, { archived: true, version: 2 }));
  expect(ids(applyToPages(pages(false, listed("a", 1)), archived, {}))).toEqual([]);
  expect(ids(applyToPages(pages(false), archived, { archived: true }))).toEqual(["a"]);
});

test("a chat beyond what is loaded comes with its page", () => {
  const found = pages(true, listed("b", 9), listed("a", 8));
  expect(ids(applyToPages(found, changed(chat("old", 1)), {}))).toEqual(["b", "a"]);
  expect(ids(applyToPages(found, changed(chat("new", 10)), {}))).toEqual(["new", "b", "a"]);
});

test("a subagent belongs to its root, also one of a subagent", () => {
  const child = chat("child", 2, { parent_chat_id: "a", root_chat_id: "a" });
  const grandchild = chat("grandchild", 3, { parent_chat_id: "child", root_chat_id: "a" });
  let found = applyToPages(pages(false, listed("a", 1)), changed(grandchild), {});
  found = applyToPages(found, changed(child), {});
  expect(flattenPages(found, {})[0]?.children.map(({ id }) => id)).toEqual(["child", "grandchild"]);
  found = applyToPages(found, { chat: child, isDeleted: true }, {});
  expect(flattenPages(found, {})[0]?.children.map(({ id }) => id)).toEqual(["grandchild"]);
});

test("a copy that does not say whether it is read keeps what was known", () => {
  const found = applyToPages(pages(false, listed("a", 1, { has_unread: true })), changed(chat("a", 2, { version: 2 })), {});
  expect(flattenPages(found, {})[0]?.has_unread).toBe(true);
});

test("hits of a search stay where they are; only their chats change", () => {
  const found = pages(false, listed("a", 1), listed("b", 9));
  const next = applyToPages(found, changed(chat("a", 10, { version: 2, title: "new" })), { q: "word" });
  expect(flattenPages(next, { q: "word" }).map(({ title }) => title)).toEqual(["new", "b"]);
  expect(applyToPages(found, changed(chat("c", 10)), { q: "word" })).toBe(found);
});

beforeEach(() => {
  vi.stubGlobal("fetch", vi.fn());
});
afterEach(() => vi.unstubAllGlobals());

test("a change during a fetch is not lost by its reply, which is older", async () => {
  const sync = new ChatListSync(new QueryClient());
  const reply = { items: [listed("a", 1)], has_more: false, next_cursor: null };
  vi.stubGlobal("fetch", () => {
    sync.apply(changed(chat("a", 2, { version: 2, title: "renamed" })));
    sync.apply(changed(chat("b", 3)));
    return Promise.resolve(Response.json(reply));
  });
  const page = await sync.fetchPage({}, undefined, new AbortController().signal);
  expect(page.items.map(({ title }) => title)).toEqual(["b", "renamed"]);
});

test("a change reaches every list that is cached, by its filters", () => {
  const client = new QueryClient();
  const sync = new ChatListSync(client);
  client.setQueryData(queryKeys.chatList({}), pages(false, listed("a", 1)));
  client.setQueryData(queryKeys.chatList({ archived: true }), pages(false));
  sync.apply(changed(chat("a", 2, { version: 2, archived: true })));
  const of = (filters: object) => client.getQueryData<ChatListPages>(queryKeys.chatList(filters))?.pages[0]?.items.length;
  expect([of({}), of({ archived: true })]).toEqual([0, 1]);
});

function ownedChat(id: string, isOwner: boolean): PublicChat {
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

function idsOfList(client: QueryClient, source: "mine" | "shared" | "all"): string[] {
  const pages = client.getQueryData<ChatListPages>(queryKeys.chatList({ source }));
  return (pages?.pages ?? []).flatMap((page) => page.items.map((item) => item.id));
}

describe("chats that others share", () => {
  it("belong to the lists with their source only", () => {
    for (const isOwner of [true, false]) {
      expect(matches(ownedChat("a", isOwner), {})).toBe(isOwner);
      expect(matches(ownedChat("a", isOwner), { source: "mine" })).toBe(isOwner);
      expect(matches(ownedChat("a", isOwner), { source: "shared" })).toBe(!isOwner);
      expect(matches(ownedChat("a", isOwner), { source: "all" })).toBe(true);
    }
  });

  it("enter the lists when they are shared and leave them when they no longer are", () => {
    const client = new QueryClient();
    for (const source of ["mine", "shared", "all"] as const) {
      const page = { items: [], has_more: false, next_cursor: null };
      client.setQueryData<ChatListPages>(queryKeys.chatList({ source }), { pages: [page], pageParams: [undefined] });
    }
    const sync = new ChatListSync(client);
    sync.onEvents([{ type: "chat", kind: "created", chat: ownedChat("theirs", false) }]);
    sync.onEvents([{ type: "chat", kind: "created", chat: ownedChat("own", true) }]);
    expect(idsOfList(client, "mine")).toEqual(["own"]);
    expect(idsOfList(client, "shared")).toEqual(["theirs"]);
    expect(idsOfList(client, "all").sort()).toEqual(["own", "theirs"]);
    const removed = { type: "removed", chat_id: "theirs" };
    expect(topicOf(removed)).toBe(CHAT_LIST_TOPIC);
    sync.onEvents([removed]);
    expect(idsOfList(client, "shared")).toEqual([]);
    expect(idsOfList(client, "all")).toEqual(["own"]);
  });
});

/** The rules of the chat list, without any client: which page has a chat after an event, in which order. */
import type { InfiniteData } from "@tanstack/react-query";
import type { components, operations } from "@/api/schema";

export type ListedChat = components["schemas"]["ListedChat"];
export type PublicChat = components["schemas"]["PublicChat"];
export type ChatPage = components["schemas"]["ChatPage"];
export type ChatListPages = InfiniteData<ChatPage, string | undefined>;
export type ChatFilters = Omit<NonNullable<operations["list_chats"]["parameters"]["query"]>, "limit" | "cursor">;

/** The newest copy of a chat; null stands for a deleted one. */
export interface ChatChange {
  readonly chat: PublicChat;
  readonly isDeleted: boolean;
}

/** Pinned chats first, then the newest. Pages may overlap after changes: each chat once. */
export function flattenPages(pages: ChatListPages, filters: ChatFilters): readonly ListedChat[] {
  const byId = new Map<string, ListedChat>();
  for (const page of pages.pages) {
    for (const chat of page.items) {
      const known = byId.get(chat.id);
      if (known === undefined || known.version < chat.version) byId.set(chat.id, chat);
    }
  }
  const chats = [...byId.values()];
  return filters.q === undefined ? chats.sort(compareChats) : chats;
}

function compareChats(a: PublicChat, b: PublicChat): number {
  const [pinA, pinB] = [a.pin_order || Infinity, b.pin_order || Infinity];
  if (pinA !== pinB) return pinA - pinB;
  if (a.updated_at !== b.updated_at) return Date.parse(b.updated_at) - Date.parse(a.updated_at);
  return a.id < b.id ? 1 : -1;
}

export function matches(chat: PublicChat, filters: ChatFilters): boolean {
  if (!isFrom(chat, filters.source ?? (filters.project_id == null ? "mine" : "all"))) return false;
  if (filters.project_id != null && chat.project_id !== filters.project_id) return false;
  if (chat.archived !== (filters.archived ?? false)) return false;
  if (filters.status !== undefined && chat.status !== filters.status) return false;
  if (filters.pinned !== undefined && filters.pinned !== chat.pin_order > 0) return false;
  return (filters.label ?? []).every((label) => hasLabel(chat, label));
}

/** A reply to an action does not say whose the chat is: it is the user's own. */
function isFrom(chat: PublicChat, source: "mine" | "shared" | "all"): boolean {
  return source === "all" || (source === "mine") === (chat.is_owner ?? true);
}

function hasLabel(chat: PublicChat, label: string): boolean {
  const at = label.indexOf(":");
  return chat.labels[label.slice(0, at)] === label.slice(at + 1);
}

export function applyToPages(pages: ChatListPages, change: ChatChange, filters: ChatFilters): ChatListPages {
  const isKnown = pages.pages.some((page) => page.items.some((chat) => chat.id === rootOf(change.chat)));
  const changed = pages.pages.map((page, index) => applyToPage(page, change, filters, !isKnown && index === 0));
  if (changed.every((page, index) => page === pages.pages[index])) return pages;
  if (!isKnown && !isWithin(change.chat, pages)) return pages;
  return { ...pages, pages: changed };
}

/** Whether a chat that is not loaded belongs before the end of what is loaded. */
function isWithin(chat: PublicChat, pages: ChatListPages): boolean {
  const lastPage = pages.pages.at(-1);
  const lastChat = lastPage?.items.at(-1);
  return lastPage === undefined || !lastPage.has_more || lastChat === undefined || compareChats(chat, lastChat) < 0;
}

function rootOf(chat: PublicChat): string {
  return chat.parent_chat_id == null ? chat.id : chat.root_chat_id;
}

export function applyToPage(page: ChatPage, change: ChatChange, filters: ChatFilters, mayInsert: boolean): ChatPage {
  const { chat } = change;
  if (chat.parent_chat_id != null) return applyToChildren(page, change);
  const known = page.items.find((item) => item.id === chat.id);
  if (known !== undefined && known.version > chat.version) return page;
  const isKept = !change.isDeleted && (filters.q === undefined ? matches(chat, filters) : known !== undefined);
  if (known === undefined) {
    if (!isKept || !mayInsert) return page;
    return { ...page, items: [{ ...chat, children: [] }, ...page.items] };
  }
  if (!isKept) return { ...page, items: page.items.filter((item) => item.id !== chat.id) };
  return { ...page, items: page.items.map((item) => (item.id === chat.id ? merge(item, chat) : item)) };
}

/** Without a root chat that is no longer shared with the user. */
export function removeFromPages(pages: ChatListPages, chatId: string): ChatListPages {
  return {
    ...pages,
    pages: pages.pages.map((page) => ({ ...page, items: page.items.filter((chat) => chat.id !== chatId) })),
  };
}

function applyToChildren(page: ChatPage, change: ChatChange): ChatPage {
  const { chat } = change;
  const root = page.items.find((item) => item.id === chat.root_chat_id);
  if (root === undefined) return page;
  const known = root.children.find((child) => child.id === chat.id);
  if (known !== undefined && known.version > chat.version) return page;
  const others = root.children.filter((child) => child.id !== chat.id);
  const next = known === undefined ? chat : { ...known, ...chat };
  const children = change.isDeleted ? others : [...others, next].sort(byCreation);
  return { ...page, items: page.items.map((item) => (item === root ? { ...root, children } : item)) };
}

function byCreation(a: PublicChat, b: PublicChat): number {
  return Date.parse(a.created_at) - Date.parse(b.created_at) || (a.id < b.id ? -1 : 1);
}

/** Fields with defaults are left out by the server, so a copy without one means its default. */
function merge(known: ListedChat, chat: PublicChat): ListedChat {
  const unread = chat.has_unread ?? known.has_unread;
  const merged: ListedChat = { ...chat, children: known.children, match: known.match ?? null };
  return unread === undefined ? merged : { ...merged, has_unread: unread };
}

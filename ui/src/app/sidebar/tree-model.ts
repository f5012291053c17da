/** The sidebar's tree: sections, chats and subagents of any depth. Pure. */
import type { TreeItem } from "@/components/tree";
import { daysBetween } from "@/platform/words";
import { familyNeedsYou, type ListChat } from "./list-chat";

export interface ChatNode {
  kind: "chat";
  key: string;
  chat: ListChat;
  children: readonly ChatNode[];
}

type SectionName = "needs" | "pinned" | "shared" | "today" | "yesterday" | "week" | "older" | "found";

export interface Section {
  kind: "section";
  key: string;
  name: SectionName;
  title: string;
  nodes: readonly ChatNode[];
}

const TITLES: Readonly<Record<SectionName, string>> = {
  needs: "Needs you",
  pinned: "Pinned",
  shared: "Shared with you",
  today: "Today",
  yesterday: "Yesterday",
  week: "This week",
  older: "Older",
  found: "Chats",
};
const ORDER: readonly SectionName[] = ["needs", "pinned", "today", "yesterday", "week", "older", "shared", "found"];

function dateSection(chat: ListChat, now: Date): SectionName {
  const days = daysBetween(new Date(chat.updated_at), now);
  if (days <= 0) return "today";
  if (days === 1) return "yesterday";
  return days < 7 ? "week" : "older";
}

function sectionOf(chat: ListChat, now: Date): SectionName {
  if (familyNeedsYou(chat)) return "needs";
  return chat.pin_order > 0 ? "pinned" : dateSection(chat, now);
}

/** A root with its subagents, which come as one flat list. One whose parent is missing hangs on the root. */
export function nodeOf(root: ListChat): ChatNode {
  const family = root.children ?? [];
  const known = new Set(family.map((chat) => chat.id));
  const byParent = new Map<string, ListChat[]>();
  for (const chat of family) {
    const named = chat.parent_chat_id ?? root.id;
    const parent = known.has(named) ? named : root.id;
    byParent.set(parent, [...(byParent.get(parent) ?? []), chat]);
  }
  const build = (chat: ListChat): ChatNode => ({
    kind: "chat",
    key: chat.id,
    chat,
    children: (byParent.get(chat.id) ?? []).sort((a, b) => a.created_at.localeCompare(b.created_at)).map(build),
  });
  return build(root);
}

/** Every chat once, by the order of the list; pinned ones by their place. */
export function buildSections(chats: readonly ListChat[], shared: readonly ListChat[], now: Date): Section[] {
  const groups = new Map<SectionName, ListChat[]>();
  const seen = new Set<string>();
  const add = (name: SectionName, chat: ListChat) => {
    if (seen.has(chat.id)) return;
    seen.add(chat.id);
    groups.set(name, [...(groups.get(name) ?? []), chat]);
  };
  for (const chat of chats) add(sectionOf(chat, now), chat);
  for (const chat of shared) add("shared", chat);
  groups.get("pinned")?.sort((a, b) => a.pin_order - b.pin_order);
  return ORDER.flatMap((name) => {
    const found = groups.get(name);
    return found === undefined ? [] : [{ kind: "section" as const, key: name, name, title: TITLES[name], nodes: found.map(nodeOf) }];
  });
}

interface ChatTreeRow extends TreeItem {
  readonly level: number;
  /** Null for a section. */
  readonly chat: ListChat | null;
}

/** The rows that can be seen, from top to bottom. */
export function visibleRows(sections: readonly Section[], folded: ReadonlySet<string>): ChatTreeRow[] {
  const rows: ChatTreeRow[] = [];
  const walk = (nodes: readonly ChatNode[], level: number, parentKey: string) => {
    for (const node of nodes) {
      const isOpen = !folded.has(node.key);
      rows.push({ key: node.key, level, parentKey, hasChildren: node.children.length > 0, isOpen, chat: node.chat, name: node.chat.title });
      if (isOpen) walk(node.children, level + 1, node.key);
    }
  };
  for (const section of sections) {
    const isOpen = !folded.has(section.key);
    rows.push({ key: section.key, level: 1, parentKey: null, hasChildren: true, isOpen, chat: null, name: section.title });
    if (isOpen) walk(section.nodes, 2, section.key);
  }
  return rows;
}

/** The new places after a pinned chat moved; only those that differ are changed. */
export function pinMoves(pinned: readonly ListChat[], movedId: string, toIndex: number): { id: string; pin_order: number }[] {
  const order = pinned.filter((chat) => chat.id !== movedId);
  const moved = pinned.find((chat) => chat.id === movedId);
  if (moved === undefined) return [];
  order.splice(Math.max(0, Math.min(order.length, toIndex)), 0, moved);
  return order.flatMap((chat, index) => (chat.pin_order === index + 1 ? [] : [{ id: chat.id, pin_order: index + 1 }]));
}

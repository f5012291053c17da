/** The durable layer: messages by id, ascending. An unchanged message keeps its reference. */
import type { ChatFeed } from "./reducer";
import type { Message } from "./types";

/**
 * A message below the oldest loaded one is left out while older ones exist: it comes with its page,
 * and would leave a gap before that.
 */
export function upsertMessages(
  messages: readonly Message[],
  changed: readonly Message[],
  hasOlder: boolean,
): readonly Message[] {
  const oldest = messages[0]?.id;
  const wanted =
    hasOlder && oldest !== undefined ? changed.filter((message) => message.id >= oldest) : changed;
  if (wanted.length === 0) return messages;
  const last = messages.at(-1)?.id ?? -1;
  if (isAscending(wanted, last)) return [...messages, ...wanted];
  const byId = new Map(messages.map((message) => [message.id, message]));
  for (const message of wanted) byId.set(message.id, message);
  return [...byId.values()].sort((a, b) => a.id - b.id);
}

function isAscending(messages: readonly Message[], after: number): boolean {
  let last = after;
  for (const message of messages) {
    if (message.id <= last) return false;
    last = message.id;
  }
  return true;
}

export function deleteMessages(messages: readonly Message[], ids: ReadonlySet<number>): readonly Message[] {
  if (ids.size === 0 || !messages.some((message) => ids.has(message.id))) return messages;
  return messages.filter((message) => !ids.has(message.id));
}

export interface OlderPage {
  readonly items: readonly Message[];
  readonly has_more: boolean;
  readonly version: number;
}

/** The feed with a page of older messages; null if the page is outdated and must be read again. */
export function addOlderPage(feed: ChatFeed, beforeId: number, page: OlderPage): ChatFeed | null {
  const { shown } = feed;
  if (page.version < feed.rewrittenAt || shown.messages[0]?.id !== beforeId) return null;
  const older = page.items.filter((message) => message.id < beforeId).sort((a, b) => a.id - b.id);
  const messages = [...older, ...shown.messages];
  return { ...feed, shown: { ...shown, messages, hasOlder: page.has_more } };
}

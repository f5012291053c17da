/**
 * `reduce(feed, event)`: the state of a chat from the server's events.
 *
 * Durable events come in groups that end with `version`. A group is collected and applied at once,
 * so nobody sees half of a change: the committed answer comes in and its live parts go out in the
 * same state. A group of an older version changes nothing, unless it begins with `history_reset`.
 */
import { addLivePart, asEarlier, type Episode, isSameEpisode } from "./live";
import type { ChatEvent, ChatState, ChatStatus, LiveParts, Message, VersionReached } from "./types";

/** What a viewer has received. Only `shown` is for the screen. */
export interface ChatFeed {
  readonly shown: ChatState;
  /** Events of a group whose `version` has not arrived. */
  readonly group: readonly ChatEvent[];
  /** Whose live parts may follow. */
  readonly episode: Episode | null;
  /** The last version that deleted messages: a page that was read before it may contain them. */
  readonly rewrittenAt: number;
}

function initialState(chatId: string): ChatState {
  return {
    chatId,
    loaded: false,
    version: 0,
    cursor: null,
    status: "waiting",
    messages: [],
    hasOlder: false,
    queue: [],
    retry: null,
    error: null,
    requestedCalls: [],
    waitingCalls: [],
    takeover: null,
    live: null,
  };
}

export function initialFeed(chatId: string): ChatFeed {
  return { shown: initialState(chatId), group: [], episode: null, rewrittenAt: 0 };
}

/** The turn goes on by itself: a worker has the chat, or one is to take it. */
export function isWorking(status: ChatStatus): boolean {
  return status === "pending" || status === "running";
}

/** Parts of an answer may come. */
export function isLive(status: ChatStatus): boolean {
  return isWorking(status) || status === "interrupting";
}

/** The turn has not ended. A message that is sent now is queued. */
export function isBusy(status: ChatStatus): boolean {
  return isLive(status) || status === "requires_action";
}

export function reduce(feed: ChatFeed, event: ChatEvent): ChatFeed {
  if (event.chat_id !== feed.shown.chatId) return feed;
  switch (event.type) {
    case "message_part":
      return applyPart(feed, event);
    case "version":
      return applyGroup(feed, event);
    default:
      return { ...feed, group: [...feed.group, event] };
  }
}

/** The same as reducing one event after the other, with one copy per group instead of one per event. */
export function reduceAll(feed: ChatFeed, events: readonly ChatEvent[]): ChatFeed {
  let at = feed;
  let group: ChatEvent[] | null = null;
  for (const event of events) {
    const isCollected = event.type !== "message_part" && event.type !== "version";
    if (isCollected && event.chat_id === at.shown.chatId) {
      group ??= [...at.group];
      group.push(event);
      continue;
    }
    if (group !== null) at = { ...at, group };
    group = null;
    at = reduce(at, event);
  }
  return group === null ? at : { ...at, group };
}

/** The connection was lost: what is missing of the group comes again, after the last cursor. */
export function dropPartialGroup(feed: ChatFeed): ChatFeed {
  return feed.group.length === 0 ? feed : { ...feed, group: [] };
}

function applyPart(feed: ChatFeed, event: Extract<ChatEvent, { type: "message_part" }>): ChatFeed {
  const { history_version: historyVersion, attempt } = event.message_part;
  if (!isSameEpisode(feed.episode, { historyVersion, attempt })) return feed;
  if (!isLive(feed.shown.status)) return feed;
  const live = addLivePart(feed.shown.live, event.message_part);
  return live === feed.shown.live ? feed : { ...feed, shown: { ...feed.shown, live } };
}

function applyGroup(feed: ChatFeed, end: VersionReached): ChatFeed {
  const events = feed.group;
  const isReset = events.some((event) => event.type === "history_reset");
  if (!isReset && feed.shown.loaded && end.version < feed.shown.version) return { ...feed, group: [] };
  const isFull = isReset || !feed.shown.loaded;
  const before = isReset ? { ...initialState(feed.shown.chatId), live: feed.shown.live } : feed.shown;
  const after = applyEvents(before, events);
  const episode = episodeAfter(feed.episode, events);
  const keepsLive = isLive(after.status) && isShownUntil(before.live, episode);
  const shown: ChatState = {
    ...after,
    loaded: true,
    version: end.version,
    cursor: end.cursor ?? null,
    hasOlder: isFull ? (end.has_older ?? false) : before.hasOlder,
    live: keepsLive && before.live !== null ? (isSameEpisode(episode, before.live) ? before.live : asEarlier(before.live)) : null,
  };
  const isRewritten = isReset || events.some((event) => event.type === "messages_deleted");
  return { shown, group: [], episode, rewrittenAt: isRewritten ? end.version : feed.rewrittenAt };
}

/**
 * The next attempt at the same answer replaces the preview with its first part, which is often the
 * same text: another worker goes on with it. What a failed call said stays until then too.
 */
function isShownUntil(live: LiveParts | null, episode: Episode | null): boolean {
  if (live === null || episode === null) return false;
  if (isSameEpisode(episode, live)) return true;
  return live.historyVersion === episode.historyVersion && live.attempt < episode.attempt;
}

function applyEvents(state: ChatState, events: readonly ChatEvent[]): ChatState {
  const changed: Message[] = [];
  const deleted = new Set<number>();
  let next = state;
  for (const event of events) {
    if (event.type === "message") changed.push(event.message);
    else if (event.type === "messages_deleted") event.ids.forEach((id) => deleted.add(id));
    else next = applyDetail(next, event);
  }
  // Within a group deletions come first: an id is never used again.
  const messages = upsertMessages(deleteMessages(state.messages, deleted), changed, state.hasOlder);
  return messages === next.messages ? next : { ...next, messages };
}

function applyDetail(state: ChatState, event: ChatEvent): ChatState {
  switch (event.type) {
    case "status":
      return { ...state, status: event.status.status, error: null, requestedCalls: [], waitingCalls: event.status.waiting_calls ?? [] };
    case "queue_update":
      return { ...state, queue: event.queued_messages };
    case "retry":
      return { ...state, retry: event.retry };
    case "error":
      return { ...state, error: event.error };
    case "action_required":
      return { ...state, requestedCalls: event.action_required.tool_calls };
    case "takeover":
      return { ...state, takeover: event.takeover };
    default:
      return state;
  }
}

function episodeAfter(known: Episode | null, events: readonly ChatEvent[]): Episode | null {
  const reset = events.findLast((event) => event.type === "preview_reset");
  if (reset === undefined) return known;
  return { historyVersion: reset.history_version, attempt: reset.attempt };
}

// The durable layer: messages by id, ascending. An unchanged message keeps its reference.

/**
 * A message below the oldest loaded one is left out while older ones exist: it comes with its page,
 * and would leave a gap before that.
 */
function upsertMessages(messages: readonly Message[], changed: readonly Message[], hasOlder: boolean): readonly Message[] {
  const oldest = messages[0]?.id;
  const wanted = hasOlder && oldest !== undefined ? changed.filter((message) => message.id >= oldest) : changed;
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

function deleteMessages(messages: readonly Message[], ids: ReadonlySet<number>): readonly Message[] {
  if (ids.size === 0 || !messages.some((message) => ids.has(message.id))) return messages;
  return messages.filter((message) => !ids.has(message.id));
}

interface OlderPage {
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

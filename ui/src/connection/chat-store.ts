/** One chat as this tab has it: its feed, older pages, and the listeners that show it. */
import { api, ApiError } from "@/api/client";
import type { OutboxItem } from "@/chat-state/outbox";
import { addOlderPage, type ChatFeed, dropPartialGroup, initialFeed, reduceAll } from "@/chat-state/reducer";
import type { ChatEvent, ChatState, SettledState } from "@/chat-state/types";
import type { ServerEvent } from "./frames";
import type { TopicHandler } from "./topics";

/** What `useChat` shows. A new object whenever something in it has changed. */
export interface ChatView {
  readonly state: ChatState;
  readonly loadingOlder: boolean;
  readonly olderError: ApiError | null;
  readonly gone: boolean;
  readonly pendingSends: readonly OutboxItem[];
}

/** The same without the answer that is being written: it changes per commit, not per token. */
export interface SettledView extends Omit<ChatView, "state"> {
  readonly state: SettledState;
}

const PAGE_SIZE = 100;
const MAX_STALE_PAGES = 5;

export class ChatStore implements TopicHandler {
  readonly chatId: string;
  #feed: ChatFeed;
  #view: ChatView;
  #settled: SettledView;
  readonly #listeners = new Set<() => void>();

  constructor(chatId: string) {
    this.chatId = chatId;
    this.#feed = initialFeed(chatId);
    this.#view = { state: this.#feed.shown, loadingOlder: false, olderError: null, gone: false, pendingSends: [] };
    this.#settled = this.#view;
  }

  get view(): ChatView {
    return this.#view;
  }

  get settled(): SettledView {
    return this.#settled;
  }

  readonly subscribe = (listener: () => void): (() => void) => {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  };

  cursor(): string | null {
    return this.#feed.shown.cursor;
  }

  onRestart(): void {
    this.#feed = dropPartialGroup(this.#feed);
    if (this.#view.gone) this.#show({ gone: false });
  }

  onEvents(events: readonly ServerEvent[]): void {
    this.#feed = reduceAll(this.#feed, events as unknown as readonly ChatEvent[]);
    this.#showFeed();
  }

  onGone(): void {
    this.#show({ gone: true });
  }

  /** Sent items leave in the same state in which their message comes in. */
  showPending(items: readonly OutboxItem[]): void {
    const pendingSends = withoutArrived(items, this.#feed.shown.version);
    if (pendingSends.length > 0 || this.#view.pendingSends.length > 0) this.#show({ pendingSends });
  }

  readonly loadOlder = async (): Promise<void> => {
    if (this.#view.loadingOlder || !this.#feed.shown.hasOlder) return;
    this.#show({ loadingOlder: true, olderError: null });
    try {
      await this.#readOlder();
      this.#show({ loadingOlder: false });
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.#show({ loadingOlder: false, olderError: error });
    }
  };

  /** A page that was read before messages were deleted is read again. */
  async #readOlder(): Promise<void> {
    for (let tries = 0; tries < MAX_STALE_PAGES; tries += 1) {
      const before = this.#feed.shown.messages[0]?.id;
      if (before === undefined) return;
      const page = await api.GET("/api/v1/chats/{chat_id}/messages", {
        path: { chat_id: this.chatId },
        query: { before_id: before, limit: PAGE_SIZE },
      });
      const feed = addOlderPage(this.#feed, before, page);
      if (feed === null) continue;
      this.#feed = feed;
      this.#showFeed();
      return;
    }
  }

  #showFeed(): void {
    const state = this.#feed.shown;
    if (state === this.#view.state) return;
    this.#show({ state, pendingSends: withoutArrived(this.#view.pendingSends, state.version) });
  }

  #show(change: Partial<ChatView>): void {
    const before = this.#view;
    this.#view = { ...before, ...change };
    if (!isSameButLive(before, this.#view)) this.#settled = this.#view;
    for (const listener of [...this.#listeners]) listener();
  }
}

function isSameButLive(before: ChatView, after: ChatView): boolean {
  const { state } = after;
  return isShallowEqual({ ...before.state, live: null }, { ...state, live: null }) && isShallowEqual({ ...before, state }, after);
}

function isShallowEqual<T extends object>(one: T, two: T): boolean {
  return (Object.keys(two) as (keyof T)[]).every((key) => Object.is(one[key], two[key]));
}

function withoutArrived(items: readonly OutboxItem[], version: number): readonly OutboxItem[] {
  return items.some((item) => hasArrived(item, version)) ? items.filter((item) => !hasArrived(item, version)) : items;
}

function hasArrived(item: OutboxItem, version: number): boolean {
  return item.state === "sent" && item.version !== null && item.version <= version;
}

/** Keeps cached chat lists and chats current by the events of the topic `chats`. */
import type { QueryClient } from "@tanstack/react-query";
import { api } from "@/api/client";
import { queryKeys } from "@/api/queries";
import type { components } from "@/api/schema";
import { applyToPage, applyToPages, removeFromPages, type ChatChange, type ChatFilters, type ChatListPages, type ChatPage, type PublicChat } from "./chat-list";
import type { ListEvent, ProjectsChanged, ServerEvent, SpendWarning } from "./frames";
import type { TopicHandler } from "./topics";

export type ChatReply = components["schemas"]["ChatReply"];

const REMEMBERED_MS = 60_000;
const MAX_REMEMBERED = 500;

export class ChatListSync implements TopicHandler {
  readonly #client: QueryClient;
  /** Changes that a list which is being fetched now may lack. */
  readonly #recent = new Map<string, ChatChange & { readonly at: number }>();

  constructor(client: QueryClient) {
    this.#client = client;
  }

  cursor(): null {
    return null;
  }

  onRestart(): void {
    // `ready` follows.
  }

  onGone(): void {
    // The list of chats always exists.
  }

  onEvents(events: readonly ServerEvent[]): void {
    for (const event of events as unknown as readonly (ListEvent | SpendWarning | ProjectsChanged)[]) {
      if (event.type === "ready") this.#refetch();
      else if (event.type === "chat") this.apply({ chat: event.chat, isDeleted: event.kind === "deleted" });
      else if (event.type === "removed") this.remove(event.chat_id);
      else if (event.type === "projects") void this.#client.invalidateQueries({ queryKey: queryKeys.projects() });
      else this.#client.setQueryData(queryKeys.spendWarning, event);
    }
  }

  apply(change: ChatChange): void {
    this.#remember(change);
    for (const query of this.#client.getQueryCache().findAll({ queryKey: queryKeys.chats })) {
      const filters = query.queryKey[1] as ChatFilters;
      this.#client.setQueryData<ChatListPages>(query.queryKey, (pages) => (pages === undefined ? undefined : applyToPages(pages, change, filters)));
    }
    this.#applyToChat(change);
  }

  /** The chat is no longer shared with the user. A list that is being fetched may still have it. */
  remove(chatId: string): void {
    this.#recent.delete(chatId);
    this.#client.setQueriesData<ChatListPages>({ queryKey: queryKeys.chats }, (pages) => (pages === undefined ? undefined : removeFromPages(pages, chatId)));
    this.#client.removeQueries({ queryKey: queryKeys.chat(chatId) });
    void this.#client.invalidateQueries({ queryKey: queryKeys.chats });
  }

  /** A page of the list with what has changed while it was read. */
  async fetchPage(filters: ChatFilters, cursor: string | undefined, signal: AbortSignal): Promise<ChatPage> {
    let page = await api.GET("/api/v1/chats", { query: { ...filters, cursor, limit: 50 }, signal });
    const since = Date.now() - REMEMBERED_MS;
    for (const change of this.#recent.values()) {
      if (change.at >= since) page = applyToPage(page, change, filters, cursor === undefined);
    }
    return page;
  }

  #refetch(): void {
    void this.#client.invalidateQueries({ queryKey: queryKeys.chats });
    void this.#client.invalidateQueries({ queryKey: queryKeys.anyChat });
    void this.#client.invalidateQueries({ queryKey: queryKeys.projects() });
  }

  #remember(change: ChatChange): void {
    const known = this.#recent.get(change.chat.id);
    if (known !== undefined && known.chat.version > change.chat.version) return;
    this.#recent.delete(change.chat.id);
    this.#recent.set(change.chat.id, { ...change, at: Date.now() });
    if (this.#recent.size > MAX_REMEMBERED) {
      const oldest = this.#recent.keys().next();
      if (oldest.done !== true) this.#recent.delete(oldest.value);
    }
  }

  #applyToChat({ chat, isDeleted }: ChatChange): void {
    const key = queryKeys.chat(chat.id);
    const known = this.#client.getQueryData<ChatReply>(key);
    if (isDeleted) {
      this.#client.removeQueries({ queryKey: key });
    } else if (known !== undefined && known.version <= chat.version) {
      this.#client.setQueryData<ChatReply>(key, { ...withDefaults(known), ...chat });
      // Its workspace, which the event does not describe, may have changed.
      if (known.version === chat.version || known.workspace_id !== chat.workspace_id) {
        void this.#client.invalidateQueries({ queryKey: key });
      }
    }
  }
}

/** Only what an event does not have: a field that it leaves out has its default. */
function withDefaults(known: ChatReply): Pick<ChatReply, "build_id" | "agent_id" | "context"> & Partial<PublicChat> {
  const { build_id, agent_id, context, has_unread } = known;
  return {
    build_id: build_id ?? null,
    agent_id: agent_id ?? null,
    context: context ?? null,
    ...(has_unread === undefined ? {} : { has_unread }),
  };
}

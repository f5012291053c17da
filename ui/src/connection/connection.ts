/** Everything live of one tab: its socket, the topics on it, and a store per chat. */
import { onSignedOut } from "@/api/client";
import { ChatStore } from "./chat-store";
import { CHAT_LIST_TOPIC, chatTopic, FrameBatch, readFrame, type ServerEvent } from "./frames";
import { Outbox, type OutboxDeps } from "./outbox";
import { Socket, SOCKET_BACKOFF, type SocketDeps, type SocketStatus } from "./socket";
import { type TopicHandler, Topics } from "./topics";

interface ConnectionDeps extends Omit<SocketDeps<readonly ServerEvent[]>, "read" | "backoff"> {
  readonly outbox: OutboxDeps;
}

/** Chats that nobody shows now, kept so that going back to one shows it at once. */
const MAX_IDLE_STORES = 20;

export class Connection {
  readonly #socket: Socket<readonly ServerEvent[]>;
  readonly #topics: Topics;
  readonly #batch = new FrameBatch(() => this.#topics.deliver());
  readonly #stores = new Map<string, ChatStore>();
  readonly #uses = new Map<string, number>();
  readonly #statusListeners = new Set<() => void>();
  readonly outbox: Outbox;
  #stopListening: (() => void) | null = null;
  #userId: string | null = null;

  constructor(deps: ConnectionDeps) {
    this.outbox = new Outbox(deps.outbox, (chatId, items) => this.chat(chatId).showPending(items));
    this.#socket = new Socket(
      { ...deps, read: readFrame, backoff: SOCKET_BACKOFF },
      {
        onStatus: () => this.#statusListeners.forEach((listener) => listener()),
        onOpen: () => {
          this.#topics.onOpen();
          this.outbox.retryNow();
        },
        onLost: () => this.#topics.onLost(),
        onFrame: (events) => this.#onEvents(events),
      },
    );
    this.#topics = new Topics((frame) => this.#socket.send(frame));
  }

  start(userId: string): void {
    if (this.#userId !== null && this.#userId !== userId) this.#stores.clear();
    this.#userId = userId;
    this.#stopListening = this.#listen();
    this.outbox.start(userId);
    this.#socket.start();
  }

  stop(): void {
    this.#stopListening?.();
    this.#stopListening = null;
    this.#batch.cancel();
    this.outbox.stop();
    this.#socket.stop();
  }

  get status(): SocketStatus {
    return this.#socket.status;
  }

  readonly onStatus = (listener: () => void): (() => void) => {
    this.#statusListeners.add(listener);
    return () => this.#statusListeners.delete(listener);
  };

  readonly retryNow = (): void => this.#socket.retryNow();

  chat(chatId: string): ChatStore {
    let store = this.#stores.get(chatId);
    if (store === undefined) {
      store = new ChatStore(chatId);
      this.#stores.set(chatId, store);
    }
    return store;
  }

  /** Keep a chat current until the returned function is called. */
  followChat(chatId: string): () => void {
    const store = this.chat(chatId);
    const release = this.#topics.retain(chatTopic(chatId), store);
    this.#uses.set(chatId, (this.#uses.get(chatId) ?? 0) + 1);
    return () => {
      release();
      const uses = (this.#uses.get(chatId) ?? 1) - 1;
      if (uses > 0) this.#uses.set(chatId, uses);
      else this.#uses.delete(chatId);
      this.#moveToEnd(chatId, store);
      this.#dropIdleStores();
    };
  }

  followChatList(handler: TopicHandler): () => void {
    return this.#topics.retain(CHAT_LIST_TOPIC, handler);
  }

  #onEvents(events: readonly ServerEvent[]): void {
    this.#topics.collect(events);
    this.#batch.request();
  }

  #moveToEnd(chatId: string, store: ChatStore): void {
    this.#stores.delete(chatId);
    this.#stores.set(chatId, store);
  }

  #dropIdleStores(): void {
    const idle = [...this.#stores.keys()].filter((chatId) => !this.#uses.has(chatId));
    for (const chatId of idle.slice(0, Math.max(0, idle.length - MAX_IDLE_STORES))) this.#stores.delete(chatId);
  }

  #listen(): () => void {
    const online = () => this.#socket.retryNow();
    const offline = () => this.#socket.onOffline();
    const visible = () => {
      if (document.visibilityState === "visible") this.#socket.checkNow();
    };
    window.addEventListener("online", online);
    window.addEventListener("offline", offline);
    document.addEventListener("visibilitychange", visible);
    const stop = onSignedOut(() => this.#socket.signedOut());
    return () => {
      window.removeEventListener("online", online);
      window.removeEventListener("offline", offline);
      document.removeEventListener("visibilitychange", visible);
      stop();
    };
  }
}

/**
 * The topics that this tab follows over its socket: counted per user of the topic, kept for a while
 * after the last one has gone, subscribed again after every reconnect.
 */
import { type ClientFrame, isTopicEvent, type ServerEvent, type Topic, type TopicEvent, topicOf } from "./frames";
import { backoffDelay, type BackoffLimits } from "./socket";

export interface TopicHandler {
  /** Where to continue; null: from the beginning. */
  cursor(): string | null;
  /** Events from the cursor on follow; what was half received before is void. */
  onRestart(): void;
  onEvents(events: readonly ServerEvent[]): void;
  /** The topic does not exist or may not be read. */
  onGone(): void;
}

interface Followed {
  readonly handler: TopicHandler;
  uses: number;
  failures: number;
  linger?: ReturnType<typeof setTimeout>;
  retry?: ReturnType<typeof setTimeout>;
  pending: ServerEvent[];
}

const LINGER_MS = 20_000;
const RETRY: BackoffLimits = { firstMs: 1000, maxMs: 30_000 };
const GONE_CODES: ReadonlySet<string> = new Set(["not_found", "forbidden", "missing_scope", "invalid_input"]);

export class Topics {
  readonly #followed = new Map<Topic, Followed>();
  readonly #send: (frame: ClientFrame) => void;
  #isOpen = false;

  constructor(send: (frame: ClientFrame) => void) {
    this.#send = send;
  }

  /** Follow a topic until the returned function is called. */
  retain(topic: Topic, handler: TopicHandler): () => void {
    let entry = this.#followed.get(topic);
    if (entry !== undefined && entry.handler !== handler) {
      this.#end(topic, entry);
      entry = undefined;
    }
    if (entry === undefined) {
      entry = { handler, uses: 0, failures: 0, pending: [] };
      this.#followed.set(topic, entry);
      this.#subscribe(topic, entry);
    }
    clearTimeout(entry.linger);
    entry.uses += 1;
    let isReleased = false;
    return () => {
      if (isReleased) return;
      isReleased = true;
      this.#release(topic, entry);
    };
  }

  onOpen(): void {
    this.#isOpen = true;
    for (const [topic, entry] of this.#followed) this.#subscribe(topic, entry);
  }

  onLost(): void {
    this.deliver();
    this.#isOpen = false;
    for (const entry of this.#followed.values()) clearTimeout(entry.retry);
  }

  /** Keep events until `deliver`. */
  collect(events: readonly ServerEvent[]): void {
    for (const event of events) {
      const topic = topicOf(event);
      if (topic !== null) this.#followed.get(topic)?.pending.push(event);
    }
  }

  deliver(): void {
    for (const [topic, entry] of this.#followed) {
      if (entry.pending.length === 0) continue;
      const events = entry.pending;
      entry.pending = [];
      this.#deliverTo(topic, entry, events);
    }
  }

  #deliverTo(topic: Topic, entry: Followed, events: readonly ServerEvent[]): void {
    let run: ServerEvent[] = [];
    for (const event of events) {
      if (!isTopicEvent(event)) {
        run.push(event);
        continue;
      }
      if (run.length > 0) entry.handler.onEvents(run);
      run = [];
      this.#onTopicEvent(topic, entry, event);
    }
    if (run.length > 0) entry.handler.onEvents(run);
  }

  #onTopicEvent(topic: Topic, entry: Followed, event: TopicEvent): void {
    if (event.type === "subscribed") {
      entry.failures = 0;
      entry.handler.onRestart();
      return;
    }
    const code = event.code ?? null;
    // The answer to our own unsubscribe, or to a frame that crossed another one.
    if (code === null || code === "already_subscribed" || code === "not_subscribed") return;
    if (GONE_CODES.has(code)) {
      this.#forget(topic, entry);
      entry.handler.onGone();
      return;
    }
    clearTimeout(entry.retry);
    entry.retry = setTimeout(() => this.#subscribe(topic, entry), backoffDelay(entry.failures, RETRY));
    entry.failures += 1;
  }

  #subscribe(topic: Topic, entry: Followed): void {
    clearTimeout(entry.retry);
    if (!this.#isOpen || this.#followed.get(topic) !== entry) return;
    const after = entry.handler.cursor();
    this.#send(after === null ? { type: "subscribe", topic } : { type: "subscribe", topic, after });
  }

  #release(topic: Topic, entry: Followed): void {
    entry.uses -= 1;
    if (entry.uses > 0 || this.#followed.get(topic) !== entry) return;
    entry.linger = setTimeout(() => this.#end(topic, entry), LINGER_MS);
  }

  #end(topic: Topic, entry: Followed): void {
    this.deliver();
    this.#forget(topic, entry);
    if (this.#isOpen) this.#send({ type: "unsubscribe", topic });
  }

  #forget(topic: Topic, entry: Followed): void {
    clearTimeout(entry.retry);
    clearTimeout(entry.linger);
    if (this.#followed.get(topic) === entry) this.#followed.delete(topic);
  }
}

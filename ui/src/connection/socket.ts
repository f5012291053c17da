/**
 * A WebSocket that stays connected: it reconnects with growing delays, notices a dead connection
 * by unanswered pings, and knows whether the browser is offline or the session has ended.
 * The events of chats and each terminal have one.
 */
type SocketState = "connecting" | "open" | "waiting" | "offline" | "signed_out";

export interface SocketStatus {
  readonly state: SocketState;
  /** When the next try begins, in the milliseconds of `Date.now`. */
  readonly retryAt: number | null;
}

export interface SocketListener<Frame> {
  onStatus(status: SocketStatus): void;
  onOpen?(): void;
  onLost?(): void;
  onFrame(frame: Frame): void;
  /** The server has closed the connection. True: for good, so it is not made again. */
  onClosed?(reason: string): boolean;
}

export interface SocketDeps<Frame> {
  readonly connect: () => WebSocket;
  /** Throws if the data cannot be from our server: then the connection is made again. */
  readonly read: (data: unknown) => Frame;
  readonly backoff: BackoffLimits;
  /** Whether the server still knows the session. Throws if it cannot be asked. */
  readonly isSignedIn?: () => Promise<boolean>;
  readonly isOnline?: () => boolean;
}

const CONNECT_TIMEOUT_MS = 15_000;
const PING_AFTER_MS = 20_000;
const PONG_WITHIN_MS = 10_000;
/** A connection that lasted so long was a good one: the next failure is the first again. */
const STABLE_AFTER_MS = 10_000;
const SIGNED_OUT_CLOSE = 1008;
const GOING_AWAY_CLOSE = 1012;
const TRY_LATER_CLOSE = 1013;
/** Ours, for a connection that does not answer. */
const DEAD_CLOSE = 4000;

export class Socket<Frame> {
  #socket: WebSocket | null = null;
  #status: SocketStatus = { state: "connecting", retryAt: null };
  #failures = 0;
  #openedAt = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #heard = 0;
  /** Something came since the last ping. */
  #isAnswered = true;
  #stopped = true;
  readonly #listener: SocketListener<Frame>;
  readonly #deps: SocketDeps<Frame>;

  constructor(deps: SocketDeps<Frame>, listener: SocketListener<Frame>) {
    this.#deps = deps;
    this.#listener = listener;
  }

  get status(): SocketStatus {
    return this.#status;
  }

  start(): void {
    if (!this.#stopped) return;
    this.#stopped = false;
    this.#failures = 0;
    this.#connect();
  }

  stop(): void {
    this.#stopped = true;
    clearTimeout(this.#timer);
    this.#abandon(1000);
    if (this.#status.state !== "signed_out") this.#show("connecting");
  }

  /** Connect now, if this is not connected: the user asked, the browser is online, or signed in again. */
  retryNow(): void {
    if (this.#stopped || this.#socket !== null) return;
    this.#failures = 0;
    this.#connect();
  }

  /** The page is visible again, after timers may have slept: find out at once whether it lives. */
  checkNow(): void {
    if (this.#stopped) return;
    if (this.#status.state === "open") this.#ping(PONG_WITHIN_MS / 2);
    else if (this.#status.state === "waiting") this.retryNow();
  }

  onOffline(): void {
    if (this.#stopped || this.#status.state === "signed_out") return;
    clearTimeout(this.#timer);
    this.#abandon(1000);
    this.#show("offline");
  }

  signedOut(): void {
    if (this.#stopped) return;
    clearTimeout(this.#timer);
    this.#abandon(1000);
    this.#show("signed_out");
  }

  /** The server has accepted what the connection is for: the next failure is the first again. */
  confirm(): void {
    this.#failures = 0;
  }

  get canSend(): boolean {
    return this.#status.state === "open" && this.#socket?.readyState === WebSocket.OPEN;
  }

  /** Bytes that were sent and have not left the browser. */
  get unsentBytes(): number {
    return this.#socket?.bufferedAmount ?? 0;
  }

  send(frame: object): void {
    if (this.canSend) this.#socket?.send(JSON.stringify(frame));
  }

  #connect(): void {
    clearTimeout(this.#timer);
    if (this.#deps.isOnline?.() === false) {
      this.#show("offline");
      return;
    }
    this.#show("connecting");
    const socket = this.#deps.connect();
    this.#socket = socket;
    socket.onopen = () => this.#onOpen(socket);
    socket.onmessage = (event: MessageEvent<unknown>) => this.#onMessage(socket, event.data);
    socket.onclose = (event) => this.#onClose(socket, event.code, event.reason);
    this.#timer = setTimeout(() => this.#fail(socket), CONNECT_TIMEOUT_MS);
  }

  #onOpen(socket: WebSocket): void {
    if (socket !== this.#socket) return;
    this.#openedAt = Date.now();
    this.#heard = this.#openedAt;
    this.#show("open");
    this.#watch();
    this.#listener.onOpen?.();
  }

  #onMessage(socket: WebSocket, data: unknown): void {
    if (socket !== this.#socket) return;
    this.#heard = Date.now();
    this.#isAnswered = true;
    let frame: Frame;
    try {
      frame = this.#deps.read(data);
    } catch {
      this.#fail(socket);
      return;
    }
    this.#listener.onFrame(frame);
  }

  /** Ping after silence; without an answer the connection is dead, whatever the browser believes. */
  #watch(): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      if (Date.now() - this.#heard < PING_AFTER_MS) this.#watch();
      else this.#ping(PONG_WITHIN_MS);
    }, PING_AFTER_MS);
  }

  #ping(withinMs: number): void {
    const socket = this.#socket;
    if (socket === null) return;
    this.#isAnswered = false;
    this.send({ type: "ping" });
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      if (this.#isAnswered) this.#watch();
      else this.#fail(socket);
    }, withinMs);
  }

  #fail(socket: WebSocket): void {
    if (socket !== this.#socket) return;
    const wasOpen = this.#status.state === "open";
    this.#abandon(DEAD_CLOSE);
    this.#wait(DEAD_CLOSE, wasOpen);
  }

  #onClose(socket: WebSocket, code: number, reason: string): void {
    if (socket !== this.#socket) return;
    const wasOpen = this.#status.state === "open";
    this.#socket = null;
    if (wasOpen) this.#listener.onLost?.();
    if (this.#listener.onClosed?.(reason) === true) this.stop();
    this.#wait(code, wasOpen);
  }

  #abandon(code: number): void {
    const socket = this.#socket;
    if (socket === null) return;
    const wasOpen = this.#status.state === "open";
    this.#socket = null;
    socket.onopen = socket.onmessage = socket.onclose = null;
    socket.close(code);
    if (wasOpen) this.#listener.onLost?.();
  }

  #wait(code: number, wasOpen: boolean): void {
    clearTimeout(this.#timer);
    if (this.#stopped) return;
    if (this.#deps.isOnline?.() === false) {
      this.#show("offline");
      return;
    }
    if (wasOpen && Date.now() - this.#openedAt >= STABLE_AFTER_MS) this.#failures = 0;
    const isPlanned = code === GOING_AWAY_CLOSE || code === TRY_LATER_CLOSE;
    const delay = backoffDelay(isPlanned && this.#failures === 0 ? 0 : this.#failures, this.#deps.backoff);
    this.#failures += 1;
    this.#show("waiting", Date.now() + delay);
    this.#timer = setTimeout(() => this.#connect(), delay);
    // A browser does not tell why an upgrade was refused.
    if (!wasOpen || code === SIGNED_OUT_CLOSE) void this.#checkSession();
  }

  async #checkSession(): Promise<void> {
    const isSignedIn = (await this.#deps.isSignedIn?.().catch(() => true)) ?? true;
    if (!isSignedIn && this.#socket === null) this.signedOut();
  }

  #show(state: SocketState, retryAt: number | null = null): void {
    if (this.#status.state === state && this.#status.retryAt === retryAt) return;
    this.#status = { state, retryAt };
    this.#listener.onStatus(this.#status);
  }
}

/** How long to wait before the next try: doubling, with full jitter so that clients spread. */
export interface BackoffLimits {
  readonly firstMs: number;
  readonly maxMs: number;
}

export const SOCKET_BACKOFF: BackoffLimits = { firstMs: 500, maxMs: 30_000 };

export function backoffDelay(failures: number, limits: BackoffLimits, draw: () => number = Math.random): number {
  const top = Math.min(limits.maxMs, limits.firstMs * 2 ** Math.min(failures, 20));
  return Math.round(top / 2 + (draw() * top) / 2);
}

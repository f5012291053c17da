/**
 * The connection of one terminal. It connects again with the same id after a loss, and the server then
 * sends the last output once more. What is typed meanwhile is kept and sent then, or refused aloud. It does
 * not fight over a terminal that was opened elsewhere.
 */
export type TerminalState =
  | { readonly name: "connecting" }
  | { readonly name: "open" }
  | { readonly name: "waiting"; readonly retryAt: number }
  | { readonly name: "taken" }
  | { readonly name: "exited"; readonly exitCode: number }
  | { readonly name: "refused"; readonly code: string; readonly message: string };

export interface TerminalListener {
  readonly onState: (state: TerminalState) => void;
  /** A connection begins: what was shown comes again. */
  readonly onReset: () => void;
  readonly onOutput: (data: Uint8Array) => void;
  readonly onNotice: (message: string) => void;
}

export interface Size {
  readonly cols: number;
  readonly rows: number;
}

type ServerFrame =
  { type: "ready"; again?: boolean } | { type: "exit"; exit_code: number } | { type: "refused"; code: string; message: string } | { type: "pong" };

const FIRST_DELAY_MS = 500;
const MAX_DELAY_MS = 15_000;
const PING_AFTER_MS = 20_000;
const PONG_WITHIN_MS = 10_000;
const INPUT_CHARS = 16_384;
/** More unsent input than this is not taken: the connection does not keep up. */
const MAX_UNSENT_BYTES = 1_000_000;
/** What is typed without a connection: some lines by hand, not a paste. */
const MAX_KEPT_CHARS = 4096;

export class TerminalSocket {
  #socket: WebSocket | null = null;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #failures = 0;
  #isOver = false;
  #isReady = false;
  /** Typed since the connection was lost, or before the first. */
  #kept = "";
  #isKeepRefused = false;
  #hadShell = false;
  #refusal: { code: string; message: string } | null = null;
  #exitCode: number | null = null;
  #size: Size;
  readonly #connect: (size: Size) => WebSocket;
  readonly #listener: TerminalListener;

  constructor(connect: (size: Size) => WebSocket, size: Size, listener: TerminalListener) {
    this.#connect = connect;
    this.#size = size;
    this.#listener = listener;
  }

  /** Connects, or connects again now. */
  start(): void {
    this.#isOver = false;
    this.#drop();
    this.#isReady = false;
    this.#refusal = null;
    this.#exitCode = null;
    this.#listener.onState({ name: "connecting" });
    const socket = this.#connect(this.#size);
    socket.binaryType = "arraybuffer";
    this.#socket = socket;
    socket.onmessage = (event: MessageEvent<string | ArrayBuffer>) => this.#onMessage(socket, event.data);
    socket.onclose = (event) => this.#onClose(socket, event.reason);
    this.#watch(socket);
  }

  stop(): void {
    this.#isOver = true;
    this.#drop();
  }

  input(text: string): void {
    const socket = this.#socket;
    if (socket === null || !this.#isReady || socket.readyState !== WebSocket.OPEN) {
      this.#keep(text);
      return;
    }
    if (socket.bufferedAmount > MAX_UNSENT_BYTES) {
      this.#listener.onNotice("The terminal does not take more input now. Wait a moment.");
      return;
    }
    this.#type(text);
  }

  resize(size: Size): void {
    if (size.cols === this.#size.cols && size.rows === this.#size.rows) return;
    this.#size = size;
    if (this.#isReady) this.#send({ type: "resize", ...size });
  }

  /** Ends the shell. */
  close(): void {
    if (this.#isReady) this.#send({ type: "close" });
  }

  #type(text: string): void {
    for (let at = 0; at < text.length; at += INPUT_CHARS) this.#send({ type: "input", data: text.slice(at, at + INPUT_CHARS) });
  }

  /** A note in the terminal says why nothing is taken once it is over. */
  #keep(text: string): void {
    if (this.#isOver) return;
    // After a gap nothing more is kept: a command without its middle is another command.
    if (this.#isKeepRefused || this.#kept.length + text.length > MAX_KEPT_CHARS) {
      if (!this.#isKeepRefused) this.#listener.onNotice("The terminal is not connected and keeps no more of what is typed. Wait a moment.");
      this.#isKeepRefused = true;
      return;
    }
    this.#kept += text;
  }

  /** Only the shell that it was typed for gets what was kept. */
  #releaseKept(isSameShell: boolean): void {
    const kept = this.#kept;
    this.#kept = "";
    this.#isKeepRefused = false;
    if (kept === "") return;
    if (isSameShell) this.#type(kept);
    else this.#listener.onNotice("What you typed while the connection was lost was not sent.");
  }

  #send(frame: object): void {
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify(frame));
  }

  #onMessage(socket: WebSocket, data: string | ArrayBuffer): void {
    if (socket !== this.#socket) return;
    this.#watch(socket);
    if (typeof data !== "string") {
      this.#listener.onOutput(new Uint8Array(data));
      return;
    }
    const frame = JSON.parse(data) as ServerFrame;
    if (frame.type === "ready") {
      this.#isReady = true;
      this.#failures = 0;
      this.#listener.onReset();
      this.#send({ type: "resize", ...this.#size });
      this.#releaseKept(frame.again === true || !this.#hadShell);
      this.#hadShell = true;
      this.#listener.onState({ name: "open" });
    } else if (frame.type === "exit") {
      this.#exitCode = frame.exit_code;
    } else if (frame.type === "refused") {
      if (this.#isReady) this.#listener.onNotice(frame.message);
      this.#refusal = { code: frame.code, message: frame.message };
    }
  }

  #onClose(socket: WebSocket, reason: string): void {
    if (socket !== this.#socket) return;
    this.#drop();
    if (reason === "exited") this.#end({ name: "exited", exitCode: this.#exitCode ?? -1 });
    else if (reason === "taken_over") this.#end({ name: "taken" });
    else if (this.#refusal !== null && !this.#isReady && isLasting(this.#refusal.code)) this.#end({ name: "refused", ...this.#refusal });
    else this.#wait();
  }

  #end(state: TerminalState): void {
    this.#isOver = true;
    this.#releaseKept(false);
    this.#listener.onState(state);
  }

  #wait(): void {
    if (this.#isOver) return;
    const top = Math.min(MAX_DELAY_MS, FIRST_DELAY_MS * 2 ** this.#failures);
    const delay = Math.round(top / 2 + (Math.random() * top) / 2);
    this.#failures = Math.min(this.#failures + 1, 10);
    this.#listener.onState({ name: "waiting", retryAt: Date.now() + delay });
    this.#timer = setTimeout(() => this.start(), delay);
  }

  /** Ping after silence; without an answer the connection is dead, whatever the browser believes. */
  #watch(socket: WebSocket): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      this.#send({ type: "ping" });
      this.#timer = setTimeout(() => {
        if (socket !== this.#socket) return;
        this.#drop();
        this.#wait();
      }, PONG_WITHIN_MS);
    }, PING_AFTER_MS);
  }

  #drop(): void {
    clearTimeout(this.#timer);
    const socket = this.#socket;
    this.#socket = null;
    if (socket === null) return;
    socket.onmessage = socket.onclose = null;
    socket.close();
  }
}

/** Whether another try now would be refused too. */
function isLasting(code: string): boolean {
  return code !== "agent_lost" && code !== "unavailable";
}

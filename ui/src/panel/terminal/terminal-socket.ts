/**
 * The connection of one terminal. After a loss it connects again with the same id, and the server sends the
 * last output once more. Input typed in the meantime is kept and sent then, or the user is told that it was
 * not. A terminal that was opened elsewhere is left to its new owner.
 */
import { Socket } from "@/connection";

export type TerminalState =
  | { readonly name: "connecting" }
  | { readonly name: "open" }
  | { readonly name: "waiting"; readonly retryAt: number }
  | { readonly name: "taken" }
  | { readonly name: "exited"; readonly exitCode: number }
  | { readonly name: "refused"; readonly code: string; readonly message: string };

interface TerminalListener {
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

const BACKOFF = { firstMs: 500, maxMs: 15_000 };
const INPUT_CHARS = 16_384;
/** More unsent input than this is not taken: the connection does not keep up. */
const MAX_UNSENT_BYTES = 1_000_000;
/** What is typed without a connection: some lines by hand, not a paste. */
const MAX_KEPT_CHARS = 4096;

export class TerminalSocket {
  readonly #socket: Socket<ServerFrame | ArrayBuffer>;
  readonly #listener: TerminalListener;
  #size: Size;
  #isOver = false;
  /** The shell of this connection takes input. */
  #isReady = false;
  #hadShell = false;
  /** Typed since the connection was lost, or before the first. */
  #kept = "";
  #isKeepRefused = false;
  #refusal: { code: string; message: string } | null = null;
  #exitCode: number | null = null;

  constructor(connect: (size: Size) => WebSocket, size: Size, listener: TerminalListener) {
    this.#size = size;
    this.#listener = listener;
    const connectTerminal = () => {
      this.#isReady = false;
      this.#refusal = null;
      this.#exitCode = null;
      const socket = connect(this.#size);
      socket.binaryType = "arraybuffer";
      return socket;
    };
    this.#socket = new Socket(
      { connect: connectTerminal, read: readFrame, backoff: BACKOFF },
      {
        onStatus: ({ state, retryAt }) => {
          if (state === "waiting") listener.onState({ name: "waiting", retryAt: retryAt ?? Date.now() });
          else if (state === "connecting" && !this.#isOver) listener.onState({ name: "connecting" });
        },
        onLost: () => {
          this.#isReady = false;
        },
        onFrame: (frame) => this.#onFrame(frame),
        onClosed: (reason) => this.#onClosed(reason),
      },
    );
  }

  /** Connects, or connects again now. */
  start(): void {
    this.#socket.stop();
    this.#isOver = false;
    this.#listener.onState({ name: "connecting" });
    this.#socket.start();
  }

  stop(): void {
    this.#isOver = true;
    this.#socket.stop();
  }

  input(text: string): void {
    if (!this.#isReady || !this.#socket.canSend) this.#keep(text);
    else if (this.#socket.unsentBytes > MAX_UNSENT_BYTES) this.#listener.onNotice("The terminal does not take more input now. Wait a moment.");
    else this.#type(text);
  }

  resize(size: Size): void {
    if (size.cols === this.#size.cols && size.rows === this.#size.rows) return;
    this.#size = size;
    if (this.#isReady) this.#socket.send({ type: "resize", ...size });
  }

  /** Ends the shell. */
  close(): void {
    if (this.#isReady) this.#socket.send({ type: "close" });
  }

  #type(text: string): void {
    for (let at = 0; at < text.length; at += INPUT_CHARS) this.#socket.send({ type: "input", data: text.slice(at, at + INPUT_CHARS) });
  }

  /** A terminal that is over keeps nothing: a note in it says why. */
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

  #onFrame(frame: ServerFrame | ArrayBuffer): void {
    if (frame instanceof ArrayBuffer) {
      this.#listener.onOutput(new Uint8Array(frame));
    } else if (frame.type === "ready") {
      this.#isReady = true;
      this.#socket.confirm();
      this.#listener.onReset();
      this.#socket.send({ type: "resize", ...this.#size });
      this.#releaseKept(frame.again === true || !this.#hadShell);
      this.#hadShell = true;
      this.#listener.onState({ name: "open" });
    } else if (frame.type === "exit") {
      this.#exitCode = frame.exit_code;
    } else if (frame.type === "refused") {
      // Of a shell that is ready, only one request was refused.
      if (this.#isReady) this.#listener.onNotice(frame.message);
      else this.#refusal = { code: frame.code, message: frame.message };
    }
  }

  /** True: the terminal is over, so that the connection is not made again. */
  #onClosed(reason: string): boolean {
    const refusal = this.#refusal;
    if (reason === "exited") this.#end({ name: "exited", exitCode: this.#exitCode ?? -1 });
    else if (reason === "taken_over") this.#end({ name: "taken" });
    else if (refusal !== null && isLasting(refusal.code)) this.#end({ name: "refused", ...refusal });
    return this.#isOver;
  }

  #end(state: TerminalState): void {
    this.#isOver = true;
    this.#releaseKept(false);
    this.#listener.onState(state);
  }
}

/** Output is sent as bytes, everything else as JSON. */
function readFrame(data: unknown): ServerFrame | ArrayBuffer {
  return data instanceof ArrayBuffer ? data : (JSON.parse(String(data)) as ServerFrame);
}

/** Whether another try now would be refused too. */
function isLasting(code: string): boolean {
  return code !== "agent_lost" && code !== "unavailable";
}

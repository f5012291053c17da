/** A WebSocket of tests: it opens, speaks and closes when the test says so. */
import { vi } from "vitest";
import type { ClientFrame } from "./frames";

export class FakeSocket {
  static readonly opened: FakeSocket[] = [];
  /** Whether the server answers pings. */
  static isAlive = false;
  onopen: (() => void) | null = null;
  onmessage: ((event: { data: unknown }) => void) | null = null;
  onclose: ((event: { code: number; reason: string }) => void) | null = null;
  readyState: number = WebSocket.OPEN;
  readonly sent: ClientFrame[] = [];
  closedWith: number | null = null;

  constructor() {
    FakeSocket.opened.push(this);
  }

  static get last(): FakeSocket {
    const socket = FakeSocket.opened.at(-1);
    if (socket === undefined) throw new Error("no socket was opened");
    return socket;
  }

  send(text: string): void {
    const frame = JSON.parse(text) as ClientFrame;
    this.sent.push(frame);
    if (frame.type === "ping" && FakeSocket.isAlive) this.say({ type: "pong" });
  }

  close(code = 1000): void {
    this.closedWith = code;
  }

  // What the server and the network do

  open(): void {
    this.onopen?.();
  }

  say(...events: object[]): void {
    this.onmessage?.({ data: JSON.stringify(events) });
  }

  drop(code = 1006, reason = ""): void {
    this.onclose?.({ code, reason });
  }
}

export function fakeDeps() {
  FakeSocket.opened.length = 0;
  FakeSocket.isAlive = false;
  const deps = {
    online: true,
    signedIn: true,
    connect: () => new FakeSocket() as unknown as WebSocket,
    isSignedIn: () => Promise.resolve(deps.signedIn),
    isOnline: () => deps.online,
  };
  return deps;
}

/** Lets promises that are settled run on. */
export async function settle(): Promise<void> {
  await vi.advanceTimersByTimeAsync(0);
}

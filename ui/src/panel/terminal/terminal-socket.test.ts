import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { TerminalSocket, type TerminalState } from "./terminal-socket";

class FakeSocket {
  binaryType = "";
  readyState = 1;
  bufferedAmount = 0;
  readonly sent: unknown[] = [];
  onopen: (() => void) | null = null;
  onmessage: ((event: { data: unknown }) => void) | null = null;
  onclose: ((event: { code: number; reason: string }) => void) | null = null;
  send(text: string): void {
    this.sent.push(JSON.parse(text));
  }
  close(): void {
    this.readyState = 3;
  }
  /** The first frame comes over a connection that is open. */
  says(frame: object): void {
    this.onopen?.();
    this.onopen = null;
    this.onmessage?.({ data: JSON.stringify(frame) });
  }
  ends(reason: string): void {
    this.onclose?.({ code: 1000, reason });
  }
}

const sockets: FakeSocket[] = [];
const states: TerminalState[] = [];
const shown: number[] = [];
const notices: string[] = [];
let resets = 0;

function terminal(): TerminalSocket {
  const connect = () => {
    const made = new FakeSocket();
    sockets.push(made);
    return made as unknown as WebSocket;
  };
  return new TerminalSocket(
    connect,
    { cols: 80, rows: 24 },
    {
      onState: (state) => states.push(state),
      onReset: () => (resets += 1),
      onOutput: (data) => shown.push(...data),
      onNotice: (message) => notices.push(message),
    },
  );
}

const last = (): FakeSocket => {
  const found = sockets.at(-1);
  if (found === undefined) throw new Error("no connection");
  return found;
};

/** What the shell was sent over the last connection. */
const typed = (): string =>
  last()
    .sent.map((frame) => frame as { type: string; data?: string })
    .map((frame) => (frame.type === "input" ? frame.data : ""))
    .join("");

beforeEach(() => {
  vi.useFakeTimers();
  sockets.length = states.length = shown.length = notices.length = resets = 0;
});
afterEach(() => vi.useRealTimers());

describe("a terminal's connection", () => {
  test("a lost connection is made again, and begins with an empty screen", () => {
    const made = terminal();
    made.start();
    last().says({ type: "ready" });
    last().onmessage?.({ data: new Uint8Array([104, 105]).buffer });
    expect(shown).toEqual([104, 105]);
    last().ends("");
    expect(states.at(-1)?.name).toBe("waiting");
    vi.advanceTimersByTime(1000);
    expect(sockets).toHaveLength(2);
    last().says({ type: "ready", again: true });
    expect([resets, states.at(-1)?.name]).toEqual([2, "open"]);
  });

  test("a terminal that was opened elsewhere or has ended is left alone", () => {
    const made = terminal();
    made.start();
    last().says({ type: "ready" });
    last().ends("taken_over");
    expect(states.at(-1)).toEqual({ name: "taken" });
    made.start();
    last().says({ type: "ready" });
    last().says({ type: "exit", exit_code: 3 });
    last().ends("exited");
    expect(states.at(-1)).toEqual({ name: "exited", exitCode: 3 });
    vi.advanceTimersByTime(60_000);
    expect(sockets).toHaveLength(2);
  });

  test("a refusal that lasts is shown; a lost agent is tried again", () => {
    const made = terminal();
    made.start();
    last().says({ type: "refused", code: "no_workspace", message: "The chat has no workspace." });
    last().ends("no_workspace");
    expect(states.at(-1)).toEqual({ name: "refused", code: "no_workspace", message: "The chat has no workspace." });
    made.start();
    last().says({ type: "refused", code: "agent_lost", message: "gone" });
    last().ends("agent_lost");
    expect(states.at(-1)?.name).toBe("waiting");
  });

  test("long input is sent in pieces, and the same size only once", () => {
    const made = terminal();
    made.start();
    last().says({ type: "ready" });
    made.input("x".repeat(40_000));
    made.resize({ cols: 80, rows: 24 });
    made.resize({ cols: 90, rows: 24 });
    const kinds = last().sent.map((frame) => (frame as { type: string }).type);
    expect(kinds).toEqual(["resize", "input", "input", "input", "resize"]);
  });

  test("what is typed before the first connection is ready is sent then", () => {
    const made = terminal();
    made.start();
    made.input("l");
    made.input("s\r");
    expect(last().sent).toEqual([]);
    last().says({ type: "ready", again: false });
    expect(typed()).toBe("ls\r");
    expect(last().sent[0]).toEqual({ type: "resize", cols: 80, rows: 24 });
  });

  test("what is typed while the connection is lost is kept, and sent once to the same shell", () => {
    const made = terminal();
    made.start();
    last().says({ type: "ready" });
    last().readyState = WebSocket.CLOSING;
    made.input("e");
    last().ends("");
    made.input("x");
    vi.advanceTimersByTime(1000);
    made.input("pr");
    last().ends("");
    vi.advanceTimersByTime(2000);
    expect(sockets).toHaveLength(3);
    last().says({ type: "ready", again: true });
    made.input(" 1");
    expect([typed(), notices]).toEqual(["expr 1", []]);
    last().ends("");
    vi.advanceTimersByTime(1000);
    last().says({ type: "ready", again: true });
    expect(typed()).toBe("");
  });

  test("of what is typed while there is no connection, no more than a limit is kept, and the rest is refused aloud", () => {
    const made = terminal();
    made.start();
    made.input("a".repeat(4096));
    made.input("b");
    made.input("c");
    expect(notices).toEqual(["The terminal is not connected and keeps no more of what is typed. Wait a moment."]);
    last().says({ type: "ready" });
    expect(typed()).toBe("a".repeat(4096));
    made.input("d");
    expect(typed()).toMatch(/ad$/);
  });

  test.each([
    ["a new shell", () => last().says({ type: "ready", again: false })],
    ["a shell that has ended", () => last().ends("exited")],
    ["a terminal that is used elsewhere", () => last().ends("taken_over")],
  ])("what was typed for the former shell does not reach %s, which is said", (_, happens) => {
    const made = terminal();
    made.start();
    last().says({ type: "ready" });
    last().ends("");
    made.input("rm -r build\r");
    vi.advanceTimersByTime(1000);
    happens();
    expect(notices).toEqual(["What you typed while the connection was lost was not sent."]);
    made.start();
    last().says({ type: "ready", again: true });
    expect(typed()).toBe("");
  });

  test("a silent connection is given up after an unanswered ping", () => {
    const made = terminal();
    made.start();
    last().says({ type: "ready" });
    vi.advanceTimersByTime(20_000);
    expect(last().sent.at(-1)).toEqual({ type: "ping" });
    vi.advanceTimersByTime(10_000);
    expect(states.at(-1)?.name).toBe("waiting");
    made.stop();
    vi.advanceTimersByTime(60_000);
    expect(sockets).toHaveLength(1);
  });
});

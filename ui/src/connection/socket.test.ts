import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { backoffDelay, Socket, SOCKET_BACKOFF, type SocketListener } from "./socket";
import { readFrame, type ServerEvent } from "./frames";
import { fakeDeps, FakeSocket, settle } from "./testing";

let deps = fakeDeps();
type Listener = Required<SocketListener<readonly ServerEvent[]>>;
let listener: { [K in keyof Listener]: ReturnType<typeof vi.fn<Listener[K]>> };
let socket: Socket<readonly ServerEvent[]>;

beforeEach(() => {
  vi.useFakeTimers();
  vi.spyOn(Math, "random").mockReturnValue(1);
  deps = fakeDeps();
  listener = { onStatus: vi.fn(), onOpen: vi.fn(), onLost: vi.fn(), onFrame: vi.fn(), onClosed: vi.fn(() => false) };
  socket = new Socket({ ...deps, read: readFrame, backoff: SOCKET_BACKOFF }, listener);
});

afterEach(() => {
  socket.stop();
  vi.useRealTimers();
});

function open(): FakeSocket {
  socket.start();
  FakeSocket.last.open();
  return FakeSocket.last;
}

test("it connects, and tells of frames", () => {
  const fake = open();
  expect(socket.status).toEqual({ state: "open", retryAt: null });
  fake.say({ type: "pong" }, { type: "ready" });
  expect(listener.onFrame).toHaveBeenCalledWith([{ type: "pong" }, { type: "ready" }]);
});

test("delays double up to a limit, with jitter", () => {
  const longest = [0, 1, 2, 10, 100].map((failures) => backoffDelay(failures, SOCKET_BACKOFF, () => 1));
  expect(longest).toEqual([500, 1000, 2000, 30_000, 30_000]);
  expect(backoffDelay(1, SOCKET_BACKOFF, () => 0)).toBe(500);
});

test("a connection that never opens is tried again, ever later, and says when", async () => {
  socket.start();
  FakeSocket.last.drop();
  expect(socket.status).toEqual({ state: "waiting", retryAt: Date.now() + 500 });
  await vi.advanceTimersByTimeAsync(500);
  expect(FakeSocket.opened).toHaveLength(2);
  FakeSocket.last.drop();
  expect(socket.status.retryAt).toBe(Date.now() + 1000);
});

test("an upgrade that never answers is given up", async () => {
  socket.start();
  const first = FakeSocket.last;
  await vi.advanceTimersByTimeAsync(15_000);
  expect(first.closedWith).toBe(4000);
  expect(socket.status.state).toBe("waiting");
});

test("after a long connection the first retry is quick again", async () => {
  socket.start();
  for (let failures = 0; failures < 4; failures += 1) {
    FakeSocket.last.drop();
    await vi.advanceTimersByTimeAsync((socket.status.retryAt ?? 0) - Date.now());
  }
  FakeSocket.last.open();
  await vi.advanceTimersByTimeAsync(10_000);
  FakeSocket.last.drop();
  expect(socket.status.retryAt).toBe(Date.now() + 500);
  expect(listener.onLost).toHaveBeenCalledOnce();
});

test("a connection that breaks at once each time is not tried without pause", async () => {
  socket.start();
  for (let round = 0; round < 3; round += 1) {
    FakeSocket.last.open();
    FakeSocket.last.drop(1012);
    await vi.advanceTimersByTimeAsync((socket.status.retryAt ?? 0) - Date.now());
  }
  FakeSocket.last.drop(1012);
  expect((socket.status.retryAt ?? 0) - Date.now()).toBe(4000);
});

test("silence is answered by a ping, and a missing answer by a new connection", async () => {
  const fake = open();
  await vi.advanceTimersByTimeAsync(20_000);
  expect(fake.sent).toEqual([{ type: "ping" }]);
  fake.say({ type: "pong" });
  await vi.advanceTimersByTimeAsync(10_000);
  expect(socket.status.state).toBe("open");
  await vi.advanceTimersByTimeAsync(20_000);
  expect(fake.sent).toHaveLength(2);
  await vi.advanceTimersByTimeAsync(10_000);
  expect(fake.closedWith).toBe(4000);
  expect(listener.onLost).toHaveBeenCalledOnce();
  expect(socket.status.state).toBe("waiting");
});

test("a busy connection is not pinged", async () => {
  const fake = open();
  for (let second = 0; second < 60; second += 5) {
    await vi.advanceTimersByTimeAsync(5000);
    fake.say({ type: "ready" });
  }
  expect(fake.sent).toEqual([]);
});

test("a page that becomes visible finds a dead connection soon", async () => {
  const fake = open();
  socket.checkNow();
  expect(fake.sent).toEqual([{ type: "ping" }]);
  await vi.advanceTimersByTimeAsync(5000);
  expect(fake.closedWith).toBe(4000);
});

test("a page that becomes visible does not wait for the next try", () => {
  socket.start();
  FakeSocket.last.drop();
  socket.checkNow();
  expect(FakeSocket.opened).toHaveLength(2);
});

test("offline it does not try, online it tries at once", async () => {
  open();
  deps.online = false;
  socket.onOffline();
  expect(socket.status).toEqual({ state: "offline", retryAt: null });
  await vi.advanceTimersByTimeAsync(120_000);
  expect(FakeSocket.opened).toHaveLength(1);
  deps.online = true;
  socket.retryNow();
  expect(FakeSocket.opened).toHaveLength(2);
});

test("a refused upgrade of somebody who is signed out ends the tries", async () => {
  deps.signedIn = false;
  socket.start();
  FakeSocket.last.drop();
  await settle();
  expect(socket.status.state).toBe("signed_out");
  await vi.advanceTimersByTimeAsync(120_000);
  expect(FakeSocket.opened).toHaveLength(1);
});

test("a changed user is connected again if it is still signed in", async () => {
  open();
  FakeSocket.last.drop(1008);
  await settle();
  expect(socket.status.state).toBe("waiting");
  await vi.advanceTimersByTimeAsync(500);
  expect(FakeSocket.opened).toHaveLength(2);
});

test("a frame that is no JSON ends the connection", () => {
  const fake = open();
  fake.onmessage?.({ data: "<html>" });
  expect(fake.closedWith).toBe(4000);
  expect(socket.status.state).toBe("waiting");
});

test("a connection that the server has closed for good is not made again", async () => {
  listener.onClosed.mockReturnValue(true);
  open();
  FakeSocket.last.drop(1000, "exited");
  expect(listener.onClosed).toHaveBeenCalledWith("exited");
  await vi.advanceTimersByTimeAsync(120_000);
  expect(FakeSocket.opened).toHaveLength(1);
});

test("events of a connection that was given up are not told", () => {
  const fake = open();
  const { onmessage } = fake;
  socket.onOffline();
  onmessage?.({ data: '[{"type":"ready"}]' });
  expect(listener.onFrame).not.toHaveBeenCalled();
});

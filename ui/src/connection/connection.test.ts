import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { CHAT_ID, groupSince, partsSince, START, take } from "@/chat-state/testing";
import { Connection } from "./connection";
import { fakeDeps, FakeSocket } from "./testing";

const USER = "11111111-1111-4111-8111-111111111111";
const TOPIC = `chat:${CHAT_ID}`;
const running = take(START, { do: "send", text: "hello" });
const streamed = take(running, { do: "stream", text: "so far", kind: "text" });
const answered = take(streamed, { do: "commit" });

let deps = fakeDeps();
let connection: Connection;

beforeEach(() => {
  vi.useFakeTimers();
  localStorage.clear();
  deps = fakeDeps();
  FakeSocket.isAlive = true;
  connection = new Connection({ ...deps, outbox: { post: () => Promise.resolve(1), storage: localStorage } });
  connection.start(USER);
});

afterEach(() => {
  connection.stop();
  vi.useRealTimers();
});

function follow() {
  const release = connection.followChat(CHAT_ID);
  const store = connection.chat(CHAT_ID);
  const listener = vi.fn();
  store.subscribe(listener);
  return { store, listener, release };
}

const subscriptions = () => FakeSocket.last.sent.filter((one) => one.type !== "ping");
const frame = () => vi.advanceTimersByTimeAsync(16);

test("a chat is subscribed once for many users, and kept a while after the last", async () => {
  FakeSocket.last.open();
  const first = connection.followChat(CHAT_ID);
  const second = connection.followChat(CHAT_ID);
  expect(FakeSocket.last.sent).toEqual([{ type: "subscribe", topic: TOPIC }]);
  first();
  second();
  await vi.advanceTimersByTimeAsync(10_000);
  const third = connection.followChat(CHAT_ID);
  await vi.advanceTimersByTimeAsync(60_000);
  expect(subscriptions()).toHaveLength(1);
  third();
  third();
  await vi.advanceTimersByTimeAsync(20_000);
  expect(subscriptions().at(-1)).toEqual({ type: "unsubscribe", topic: TOPIC });
});

test("frames of one moment make one notification", async () => {
  FakeSocket.last.open();
  const { store, listener } = follow();
  FakeSocket.last.say({ type: "subscribed", topic: TOPIC });
  FakeSocket.last.say(...groupSince(streamed, 0));
  FakeSocket.last.say(...partsSince(streamed, 0));
  expect(listener).not.toHaveBeenCalled();
  await frame();
  expect(listener).toHaveBeenCalledOnce();
  expect(store.view.state.live?.parts).toEqual([{ type: "text", text: "so far" }]);
});

test("text that is written changes the chat thirty times a second, and the chat without its live answer never", async () => {
  FakeSocket.last.open();
  const { store, listener } = follow();
  FakeSocket.last.say({ type: "subscribed", topic: TOPIC }, ...groupSince(running, 0));
  await frame();
  const settled = store.settled;
  let state = running;
  for (let at = 0; at < 60; at += 1) {
    state = take(state, { do: "stream", text: `${at} `, kind: "text" });
    FakeSocket.last.say(...partsSince(state, at));
    await frame();
  }
  await vi.advanceTimersByTimeAsync(100);
  expect(store.view.state.live?.seq).toBe(60);
  expect(listener.mock.calls.length).toBeLessThanOrEqual(33);
  expect(store.settled).toBe(settled);
  FakeSocket.last.say(...groupSince(take(state, { do: "commit" }), 0));
  await vi.advanceTimersByTimeAsync(100);
  expect(store.settled).not.toBe(settled);
});

test("a hidden page is kept current by a timer", async () => {
  vi.spyOn(document, "visibilityState", "get").mockReturnValue("hidden");
  FakeSocket.last.open();
  const { store } = follow();
  FakeSocket.last.say(...groupSince(running, 0));
  await vi.advanceTimersByTimeAsync(250);
  expect(store.view.state.version).toBe(running.version);
});

test("after a reconnect the stream goes on at the cursor, without half a group", async () => {
  FakeSocket.last.open();
  const { store } = follow();
  FakeSocket.last.say(...groupSince(streamed, 0));
  FakeSocket.last.say(...groupSince(answered, streamed.version).slice(0, 1));
  FakeSocket.last.drop();
  expect(store.view.state.version).toBe(streamed.version);
  await vi.advanceTimersByTimeAsync(500);
  FakeSocket.last.open();
  expect(FakeSocket.last.sent).toContainEqual({ type: "subscribe", topic: TOPIC, after: `${streamed.version}-abc` });
  FakeSocket.last.say({ type: "subscribed", topic: TOPIC });
  FakeSocket.last.say(...groupSince(answered, streamed.version));
  await frame();
  expect(store.view.state.messages).toHaveLength(2);
  expect(store.view.state.live).toBeNull();
});

test("a chat that does not exist is gone", async () => {
  FakeSocket.last.open();
  const { store } = follow();
  FakeSocket.last.say({ type: "refused", code: "not_found", message: "There is no such chat.", topic: TOPIC });
  await frame();
  expect(store.view.gone).toBe(true);
});

test("a subscription that the server ended is tried again", async () => {
  FakeSocket.last.open();
  follow();
  FakeSocket.last.say({ type: "subscribed", topic: TOPIC });
  FakeSocket.last.say({ type: "unsubscribed", topic: TOPIC, code: "unavailable", message: "later" });
  await frame();
  await vi.advanceTimersByTimeAsync(1000);
  expect(FakeSocket.last.sent).toHaveLength(2);
});

test("a chat that is shown again shows what it had at once", async () => {
  FakeSocket.last.open();
  const { release } = follow();
  FakeSocket.last.say(...groupSince(running, 0));
  await frame();
  release();
  await vi.advanceTimersByTimeAsync(60_000);
  expect(connection.chat(CHAT_ID).view.state.messages).toHaveLength(1);
  connection.followChat(CHAT_ID);
  expect(FakeSocket.last.sent.at(-1)).toEqual({ type: "subscribe", topic: TOPIC, after: `${running.version}-abc` });
});

test("chats that nobody shows are forgotten, the oldest first", () => {
  FakeSocket.last.open();
  const ids = Array.from({ length: 25 }, (_, index) => `00000000-0000-4000-8000-${String(index).padStart(12, "0")}`);
  const stores = ids.map((id) => {
    connection.followChat(id)();
    return connection.chat(id);
  });
  expect(connection.chat(ids[0] ?? "")).not.toBe(stores[0]);
  expect(connection.chat(ids[24] ?? "")).toBe(stores[24]);
});

test("another user sees nothing of the last one's chats", async () => {
  FakeSocket.last.open();
  follow();
  FakeSocket.last.say(...groupSince(running, 0));
  await frame();
  connection.stop();
  connection.start("22222222-2222-4222-8222-222222222222");
  expect(connection.chat(CHAT_ID).view.state.loaded).toBe(false);
});

test("a sent message leaves the pending ones in the state in which it arrives", async () => {
  FakeSocket.last.open();
  const { store } = follow();
  connection.outbox.add(CHAT_ID, { content: [{ type: "text", text: "hello" }] });
  expect(store.view.pendingSends).toHaveLength(1);
  await vi.advanceTimersByTimeAsync(0);
  expect(store.view.pendingSends.map((item) => item.state)).toEqual(["sent"]);
  FakeSocket.last.say(...groupSince(running, 0));
  await frame();
  expect(store.view.state.messages).toHaveLength(1);
  expect(store.view.pendingSends).toEqual([]);
});

import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { ApiError } from "@/api/client";
import type { OutboxItem, SendBody } from "@/chat-state/outbox";
import { Outbox } from "./outbox";
import { settle } from "./testing";

const USER = "user-1";
const CHAT = "chat-1";

interface Posted {
  readonly chatId: string;
  readonly text: string;
  readonly key: string;
}

/** A server that runs each key once, and fails as often as the test says. */
class FakeServer {
  readonly tries: Posted[] = [];
  readonly ran = new Map<string, string>();
  readonly failures: (ApiError | "lost-reply")[] = [];

  post = (chatId: string, body: SendBody, key: string): Promise<number> => {
    const [part] = body.content;
    const text = part?.type === "text" ? part.text : "";
    this.tries.push({ chatId, text, key });
    const failure = this.failures.shift();
    if (failure === "lost-reply") this.ran.set(key, text);
    if (failure !== undefined) return Promise.reject(failure === "lost-reply" ? network() : failure);
    this.ran.set(key, text);
    return Promise.resolve(this.ran.size);
  };
}

const network = () => new ApiError(0, { code: "network", message: "no" });
const refused = (code: string, status = 409) => new ApiError(status, { code, message: "no" });
const say = (text: string) => ({ content: [{ type: "text" as const, text }] });

let server: FakeServer;
let shown: readonly OutboxItem[];
let outbox: Outbox;

function newOutbox(): Outbox {
  return new Outbox({ post: server.post, storage: localStorage }, (_, items) => {
    shown = items;
  });
}

beforeEach(() => {
  vi.useFakeTimers();
  vi.spyOn(Math, "random").mockReturnValue(1);
  localStorage.clear();
  server = new FakeServer();
  shown = [];
  outbox = newOutbox();
  outbox.start(USER);
});

afterEach(() => {
  outbox.stop();
  vi.useRealTimers();
});

test("messages of a chat go one after the other, in order", async () => {
  for (const text of ["one", "two", "three"]) outbox.add(CHAT, say(text));
  expect(server.tries).toHaveLength(1);
  await settle();
  expect([...server.ran.values()]).toEqual(["one", "two", "three"]);
  expect(shown.map((item) => item.state)).toEqual(["sent", "sent", "sent"]);
  expect(localStorage.length).toBe(0);
});

test("without a connection a message is kept, and sent later with the same key", async () => {
  server.failures.push(network(), network());
  outbox.add(CHAT, say("one"));
  await settle();
  expect(shown[0]).toMatchObject({ state: "waiting", failures: 1 });
  expect(localStorage.length).toBe(1);
  await vi.advanceTimersByTimeAsync(1000 + 2000);
  expect(new Set(server.tries.map(({ key }) => key)).size).toBe(1);
  expect(server.tries).toHaveLength(3);
  expect([...server.ran.values()]).toEqual(["one"]);
});

test("a lost reply does not send the message twice", async () => {
  server.failures.push("lost-reply");
  outbox.add(CHAT, say("one"));
  await vi.advanceTimersByTimeAsync(1000);
  expect(server.tries).toHaveLength(2);
  expect(server.ran.size).toBe(1);
});

test("a later message waits for an earlier one that could not be sent", async () => {
  server.failures.push(network());
  outbox.add(CHAT, say("one"));
  outbox.add(CHAT, say("two"));
  await settle();
  expect(server.ran.size).toBe(0);
  outbox.retryNow();
  await settle();
  expect([...server.ran.values()]).toEqual(["one", "two"]);
});

test("other chats do not wait", async () => {
  server.failures.push(network());
  outbox.add(CHAT, say("one"));
  outbox.add("chat-2", say("two"));
  await settle();
  expect([...server.ran.values()]).toEqual(["two"]);
});

test("a refused message waits for the user and holds up those behind it", async () => {
  server.failures.push(refused("usage_limit_exceeded"));
  outbox.add(CHAT, say("one"));
  outbox.add(CHAT, say("two"));
  await vi.advanceTimersByTimeAsync(120_000);
  expect(shown.map((item) => item.state)).toEqual(["refused", "waiting"]);
  expect(outbox.discard(shown[0]?.id ?? "")?.content).toEqual(say("one").content);
  await settle();
  expect([...server.ran.values()]).toEqual(["two"]);
});

test("a refused message that is tried again gets a new key: the server has answered the old one", async () => {
  server.failures.push(refused("queue_full", 429));
  outbox.add(CHAT, say("one"));
  await settle();
  outbox.retry(shown[0]?.id ?? "");
  await settle();
  expect(new Set(server.tries.map(({ key }) => key)).size).toBe(2);
  expect([...server.ran.values()]).toEqual(["one"]);
});

test("what a closed tab left unsent is sent by the next one", async () => {
  server.failures.push(network());
  outbox.add(CHAT, say("one"));
  await settle();
  outbox.stop();
  outbox = newOutbox();
  outbox.start(USER);
  await settle();
  expect([...server.ran.values()]).toEqual(["one"]);
  expect(new Set(server.tries.map(({ key }) => key)).size).toBe(1);
});

test("another user does not send it", async () => {
  server.failures.push(network());
  outbox.add(CHAT, say("one"));
  await settle();
  outbox.stop();
  outbox = newOutbox();
  outbox.start("user-2");
  await vi.advanceTimersByTimeAsync(60_000);
  expect(server.tries).toHaveLength(1);
});

test("a message tried a day ago is not sent again by itself: its key is forgotten by now", async () => {
  server.failures.push("lost-reply");
  outbox.add(CHAT, say("one"));
  await settle();
  outbox.stop();
  vi.setSystemTime(Date.now() + 24 * 60 * 60 * 1000);
  outbox = newOutbox();
  outbox.start(USER);
  await settle();
  expect(server.tries).toHaveLength(1);
  expect(shown[0]).toMatchObject({ state: "refused", error: { code: "too_old" } });
});

test("a message that was on its way when its tab was closed counts as tried", async () => {
  server.post = () => new Promise(() => undefined);
  outbox = newOutbox();
  outbox.start(USER);
  outbox.add(CHAT, say("one"));
  outbox.stop();
  vi.setSystemTime(Date.now() + 24 * 60 * 60 * 1000);
  outbox = newOutbox();
  outbox.start(USER);
  await settle();
  expect(shown[0]).toMatchObject({ state: "refused", error: { code: "too_old" } });
});

test("a signed-out user's message waits for the sign-in", async () => {
  server.failures.push(refused("unauthorized", 401));
  outbox.add(CHAT, say("one"));
  await settle();
  expect(shown[0]?.state).toBe("waiting");
});

test("a busy server says how long to wait", async () => {
  server.failures.push(new ApiError(503, { code: "going_away", message: "later" }, 7000));
  outbox.add(CHAT, say("one"));
  await vi.advanceTimersByTimeAsync(6999);
  expect(server.tries).toHaveLength(1);
  await vi.advanceTimersByTimeAsync(1);
  expect(server.ran.size).toBe(1);
});

test("a message that is on its way cannot be discarded", () => {
  const item = outbox.add(CHAT, say("one"));
  expect(outbox.discard(item?.id ?? "")).toBeNull();
});

test("the number of unsent messages is limited", async () => {
  server.failures.push(...Array.from({ length: 50 }, network));
  const added = Array.from({ length: 51 }, (_, index) => outbox.add(CHAT, say(String(index))));
  await settle();
  expect(added.filter((item) => item === null)).toHaveLength(1);
});

test("a full storage does not keep a message from being sent", async () => {
  vi.spyOn(Storage.prototype, "setItem").mockImplementation(() => {
    throw new DOMException("full", "QuotaExceededError");
  });
  outbox.add(CHAT, say("one"));
  await settle();
  expect([...server.ran.values()]).toEqual(["one"]);
});

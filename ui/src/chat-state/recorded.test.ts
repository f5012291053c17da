// @vitest-environment node
/** Logs of the real server, which the client library in Python replays too (`tests/data/events`). */
import { readdirSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { dropPartialGroup, initialFeed, reduce, reduceAll } from "./reducer";
import type { ChatEvent, ChatState, Message, QueuedMessage } from "./types";

interface RecordedChat {
  readonly chat_id: string;
  readonly connections: readonly (readonly ChatEvent[])[];
  readonly resumes: Readonly<Record<string, readonly ChatEvent[]>>;
  readonly chat: { readonly version: number; readonly status: string; readonly last_error: unknown };
  readonly messages: readonly Message[];
  readonly queued_messages: readonly QueuedMessage[];
}

const DIRECTORY = fileURLToPath(new URL("../../../tests/data/events/", import.meta.url));
const names = readdirSync(DIRECTORY).filter((name) => name.endsWith(".json"));

function read(name: string): RecordedChat {
  return JSON.parse(readFileSync(DIRECTORY + name, "utf8")) as RecordedChat;
}

function expected(log: RecordedChat) {
  return {
    version: log.chat.version,
    status: log.chat.status,
    messages: log.messages,
    queue: log.queued_messages,
    error: log.chat.last_error,
    live: null,
  };
}

function compared({ version, status, messages, queue, error, live }: ChatState) {
  return { version, status, messages, queue, error, live };
}

/** No text of the preview is also the text of a committed answer of the same turn. */
function expectApart(state: ChatState): void {
  const live = state.live?.parts.find((part) => part.type === "text")?.text;
  if (live === undefined) return;
  const turn = state.messages.slice(state.messages.findLastIndex((message) => message.role === "user") + 1);
  const committed = turn.flatMap((message) => message.content).filter((part) => part.type === "text");
  for (const part of committed) expect(part.text.startsWith(live)).toBe(false);
}

test("there are recorded chats", () => {
  expect(names.length).toBeGreaterThanOrEqual(8);
});

test.each(names)("the whole log %s gives the server's own state", (name) => {
  const log = read(name);
  let feed = initialFeed(log.chat_id);
  for (const events of log.connections) feed = reduceAll(dropPartialGroup(feed), events);
  expect(compared(feed.shown)).toEqual(expected(log));
});

test.each(names)("the log %s cut after any event and resumed gives the server's own state", (name) => {
  const log = read(name);
  let feed = initialFeed(log.chat_id);
  for (const events of log.connections) {
    feed = dropPartialGroup(feed);
    for (const event of events) {
      feed = reduce(feed, event);
      expectApart(feed.shown);
      const rest = log.resumes[feed.shown.cursor ?? ""];
      if (rest === undefined) throw new Error(`no events after ${feed.shown.cursor ?? "the start"}`);
      expect(compared(reduceAll(dropPartialGroup(feed), rest).shown)).toEqual(expected(log));
    }
  }
});

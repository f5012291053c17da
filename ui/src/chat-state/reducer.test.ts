import fc from "fast-check";
import { expect, test } from "vitest";
import { addOlderPage, type ChatFeed, dropPartialGroup, initialFeed, reduce, reduceAll } from "./reducer";
import { CHAT_ID, groupSince, partsSince, type ServerState, START, type Step, take } from "./testing";
import type { ChatEvent, ChatState, Message } from "./types";

const word = fc.string({ minLength: 1, maxLength: 4 });
const step: fc.Arbitrary<Step> = fc.oneof(
  fc.record({ do: fc.constant("send" as const), text: word }),
  { weight: 4, arbitrary: fc.record({ do: fc.constant("stream" as const), text: word, kind: fc.constantFrom("text" as const, "reasoning" as const) }) },
  fc.record({ do: fc.constant("call" as const), args: fc.array(word, { minLength: 1, maxLength: 3 }) }),
  { weight: 2, arbitrary: fc.record({ do: fc.constant("commit" as const) }) },
  fc.record({ do: fc.constant("enqueue" as const), text: word }),
  fc.record({ do: fc.constant("dequeue" as const) }),
  fc.record({ do: fc.constant("retry" as const) }),
  fc.record({ do: fc.constant("fail" as const), message: word }),
  fc.record({ do: fc.constant("edit" as const), keep: fc.nat(5) }),
);
const steps = fc.array(step, { minLength: 1, maxLength: 40 });

function statesOf(taken: readonly Step[]): ServerState[] {
  const states = [take(START, { do: "send", text: "hello" })];
  for (const one of taken) states.push(take(states.at(-1) ?? START, one));
  return states;
}

/** The events of a viewer that stays connected from the state `from` to the state `to`. */
function connectedEvents(states: readonly ServerState[], from: number, to: number, cursor: number): ChatEvent[] {
  const first = states[from] ?? START;
  const events = [...groupSince(first, cursor), ...partsSince(first, 0)];
  for (let at = from + 1; at <= to; at += 1) {
    const [before, now] = [states[at - 1] ?? START, states[at] ?? START];
    if (now.version > before.version) events.push(...groupSince(now, before.version), ...partsSince(now, 0));
    else events.push(...partsSince(now, before.parts.length));
  }
  return events;
}

function fresh(state: ServerState): ChatState {
  return reduceAll(initialFeed(CHAT_ID), [...groupSince(state, 0), ...partsSince(state, 0)]).shown;
}

/** Without what only a viewer that was there has read: the text of a failed call, until the next one has said as much. */
function withoutEarlier(shown: ChatState): ChatState {
  if (shown.live?.earlier === undefined) return shown;
  const { earlier, ...live } = shown.live;
  return { ...shown, live: earlier === live.parts ? null : live };
}

/** The answer is committed or live, never both: the model server commits one after each user message. */
function expectApart({ shown }: ChatFeed): void {
  if (shown.live === null) return;
  expect(["pending", "running", "interrupting"]).toContain(shown.status);
  expect(shown.messages.at(-1)?.role).not.toBe("assistant");
}

test("a viewer that stays connected has what a new one gets", () => {
  fc.assert(
    fc.property(steps, (taken) => {
      const states = statesOf(taken);
      const feed = reduceAll(initialFeed(CHAT_ID), connectedEvents(states, 0, states.length - 1, 0));
      expect(withoutEarlier(feed.shown)).toEqual(fresh(states.at(-1) ?? START));
    }),
  );
});

test("of several failed calls the text that was read stays, and no call of a tool", () => {
  const states = statesOf([{ do: "stream", text: "read", kind: "text" }, { do: "retry" }, { do: "call", args: ["1"] }, { do: "retry" }]);
  const { live } = reduceAll(initialFeed(CHAT_ID), connectedEvents(states, 0, states.length - 1, 0)).shown;
  expect(live?.parts).toEqual([expect.objectContaining({ type: "text", text: "read" })]);
  expect(live?.earlier).toBe(live?.parts);
});

test("connections cut anywhere, with repeats, give the state of a new viewer", () => {
  const connections = fc.array(fc.record({ length: fc.nat(15), cut: fc.nat(60), repeats: fc.boolean() }), { maxLength: 8 });
  fc.assert(
    fc.property(steps, connections, (taken, plan) => {
      const states = statesOf(taken);
      const last = states.length - 1;
      let feed = initialFeed(CHAT_ID);
      let at = 0;
      for (const { length, cut, repeats } of plan) {
        const to = Math.min(last, at + length);
        const events = connectedEvents(states, at, to, feed.shown.version).slice(0, cut);
        feed = reduceAll(dropPartialGroup(feed), events);
        if (repeats) feed = reduceAll(dropPartialGroup(feed), lastGroup(events));
        expectApart(feed);
        at = to;
      }
      feed = reduceAll(dropPartialGroup(feed), connectedEvents(states, at, last, feed.shown.version));
      expect(withoutEarlier(feed.shown)).toEqual(fresh(states.at(-1) ?? START));
    }),
  );
});

/** The group of the last `version`, as another connection would send it again. */
function lastGroup(events: readonly ChatEvent[]): readonly ChatEvent[] {
  const end = events.findLastIndex((event) => event.type === "version");
  const begin = events.slice(0, Math.max(end, 0)).findLastIndex((event) => event.type === "version");
  return end < 0 ? [] : events.slice(begin + 1, end + 1);
}

test("one event after the other gives the same as all at once, and shows only whole versions", () => {
  fc.assert(
    fc.property(steps, (taken) => {
      const states = statesOf(taken);
      const events = connectedEvents(states, 0, states.length - 1, 0);
      let feed = initialFeed(CHAT_ID);
      for (const event of events) {
        const before = feed.shown;
        feed = reduce(feed, event);
        if (event.type !== "version" && event.type !== "message_part") expect(feed.shown).toBe(before);
        expectApart(feed);
      }
      expect(feed).toEqual(reduceAll(initialFeed(CHAT_ID), events));
    }),
  );
});

test("a reset replaces everything at once, also by an older version", () => {
  fc.assert(
    fc.property(steps, steps, (first, second) => {
      const now = statesOf(first).at(-1) ?? START;
      const other = statesOf(second).at(-1) ?? START;
      const feed = reduceAll(initialFeed(CHAT_ID), [...groupSince(now, 0), ...partsSince(now, 0)]);
      const reset = groupSince(other, 0, true);
      const half = reduceAll(feed, reset.slice(0, -1));
      expect(half.shown).toBe(feed.shown);
      const done = reduceAll(half, [...reset.slice(-1), ...partsSince(other, 0)]).shown;
      expect(done.version).toBe(other.version);
      expect(done.messages).toEqual(fresh(other).messages);
      expect(done.queue).toEqual(fresh(other).queue);
    }),
  );
});

test("events of another chat change nothing", () => {
  const feed = initialFeed(CHAT_ID);
  expect(reduce(feed, { type: "history_reset", chat_id: "another" })).toBe(feed);
});

test("parts of an episode that was replaced are ignored", () => {
  const running = take(take(START, { do: "send", text: "hi" }), { do: "stream", text: "old", kind: "text" });
  const again = take(running, { do: "retry" });
  const feed = reduceAll(initialFeed(CHAT_ID), [...groupSince(again, 0), ...partsSince(running, 0)]);
  expect(feed.shown.live).toBeNull();
});

test("an answer that another worker goes on with stays on the screen until its text is there again", () => {
  const feed = (...events: object[]): ChatFeed => reduceAll(started, events as ChatEvent[]);
  const started = reduceAll(initialFeed(CHAT_ID), [
    { type: "status", chat_id: CHAT_ID, status: { status: "running" } },
    { type: "preview_reset", chat_id: CHAT_ID, history_version: 1, attempt: 1 },
    { type: "version", chat_id: CHAT_ID, version: 1, cursor: "1" },
    part(1, 1, "half an "),
    part(1, 2, "ans"),
  ] as ChatEvent[]);
  const reset = { type: "preview_reset", chat_id: CHAT_ID, history_version: 1, attempt: 2 };
  const end = { type: "version", chat_id: CHAT_ID, version: 2, cursor: "2" };
  const retry = { type: "retry", chat_id: CHAT_ID, retry: { attempt: 1, delay_ms: 1000, error: "busy" } };
  expect(textOf(feed(reset, end))).toBe("half an ans");
  expect(textOf(feed(reset, end, part(2, 1, "half an ans")))).toBe("half an ans");
  expect(textOf(feed(reset, end, part(2, 1, "half an ans"), part(2, 2, "wer")))).toBe("half an answer");
  expect(textOf(feed(reset, end, part(2, 1, "another one")))).toBe("another one");
  const earlierOf = ({ shown }: ChatFeed) => shown.live?.earlier?.map((one) => (one.type === "text" ? one.text : "")).join("") ?? null;
  expect(earlierOf(started), "nothing is greyed while the first attempt writes").toBeNull();
  expect(earlierOf(feed(reset, end))).toBe("half an ans");
  expect(earlierOf(feed(retry, reset, end)), "what a failed call said stays while it is retried").toBe("half an ans");
  expect(earlierOf(feed(reset, end, part(2, 1, "anoth"), part(2, 2, "er")))).toBe("half an ans");
  expect(earlierOf(feed(reset, end, part(2, 1, "anoth"), part(2, 2, "er one")))).toBeNull();
});

function part(attempt: number, seq: number, text: string): object {
  const payload = { role: "assistant", part: { type: "text", text }, history_version: 1, attempt, seq };
  return { type: "message_part", chat_id: CHAT_ID, message_part: payload };
}

function textOf(feed: ChatFeed): string {
  return (feed.shown.live?.parts ?? []).map((one) => (one.type === "text" ? one.text : "")).join("");
}

test("a reconnect during an answer keeps the preview on the screen while its parts come again", () => {
  const running = take(take(START, { do: "send", text: "hi" }), { do: "stream", text: "so far", kind: "text" });
  const feed = reduceAll(initialFeed(CHAT_ID), [...groupSince(running, 0), ...partsSince(running, 0)]);
  const resumed = reduceAll(feed, groupSince(running, running.version));
  expect(resumed.shown.live?.parts).toEqual([{ type: "text", text: "so far" }]);
  expect(reduceAll(resumed, partsSince(running, 0)).shown).toEqual(feed.shown);
});

function message(id: number): Message {
  return { id, chat_id: CHAT_ID, role: "user", content: [], created_at: "2026-11-15T10:00:00Z" };
}

function tail(ids: readonly number[]): ChatFeed {
  const group: ChatEvent[] = ids.map((id) => ({ type: "message", chat_id: CHAT_ID, message: message(id) }));
  return reduceAll(initialFeed(CHAT_ID), [...group, { type: "version", chat_id: CHAT_ID, version: 9, cursor: "9-a", has_older: true }]);
}

test("an older page comes before what is there", () => {
  const feed = addOlderPage(tail([7, 8]), 7, { items: [message(6), message(5)], has_more: false, version: 9 });
  expect(feed?.shown.messages.map(({ id }) => id)).toEqual([5, 6, 7, 8]);
  expect(feed?.shown.hasOlder).toBe(false);
});

test("an older page that was read before messages were deleted is not used", () => {
  const edited = reduceAll(tail([7, 8]), [
    { type: "messages_deleted", chat_id: CHAT_ID, ids: [5, 6, 8] },
    { type: "version", chat_id: CHAT_ID, version: 10, cursor: "10-a" },
  ]);
  expect(edited.shown.hasOlder).toBe(true);
  expect(addOlderPage(edited, 7, { items: [message(6)], has_more: false, version: 9 })).toBeNull();
});

test("a change of a message that is not loaded waits for its page", () => {
  const feed = reduceAll(tail([7, 8]), [
    { type: "message", chat_id: CHAT_ID, message: message(3) },
    { type: "version", chat_id: CHAT_ID, version: 10, cursor: "10-a" },
  ]);
  expect(feed.shown.messages.map(({ id }) => id)).toEqual([7, 8]);
});

test("a version that is shown again takes the place of the line whose end was loaded", () => {
  const feed = reduceAll(tail([7, 8]), [
    { type: "messages_deleted", chat_id: CHAT_ID, ids: [5, 6, 7, 8] },
    { type: "message", chat_id: CHAT_ID, message: message(3) },
    { type: "message", chat_id: CHAT_ID, message: message(4) },
    { type: "version", chat_id: CHAT_ID, version: 10, cursor: "10-a" },
  ]);
  expect(feed.shown.messages.map(({ id }) => id)).toEqual([3, 4]);
  expect(addOlderPage(feed, 3, { items: [message(2), message(1)], has_more: false, version: 10 })?.shown.messages).toHaveLength(4);
});

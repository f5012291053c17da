import { describe, expect, it } from "vitest";
import type { components } from "@/api/schema";
import { Follower, isAtEnd, isUpKey } from "./follow";
import { joinTakeovers } from "./timeline";

type Turn = components["schemas"]["TurnItem"];

const worker = (name: string) => ({ id: "00000000-0000-4000-8000-000000000000", name });
const takeover = (version: number, messageId: number) => ({
  worker: worker("b2"),
  lost_worker: worker("a1"),
  after_ms: 2100,
  noticed_by: "lock_gone" as const,
  missed_renewals: 2,
  message_id: messageId,
  resumed_calls: 0,
  repeats_answer: false,
  version,
});
const turn = (...taken: (ReturnType<typeof takeover> | null)[]) => ({ attempts: taken.map((one) => ({ takeover: one })) }) as unknown as Turn;

describe("the takeovers of a chat", () => {
  it("are all that the record has, in the order of time", () => {
    const turns = [turn(null, takeover(40, 12)), turn(takeover(12, 3), takeover(9, 3))];
    expect(joinTakeovers(turns, takeover(40, 12)).map((one) => [one.version, one.messageId])).toEqual([
      [9, 3],
      [12, 3],
      [40, 12],
    ]);
  });

  it("have the last one before the record was read", () => {
    expect(joinTakeovers([], takeover(40, 12))).toHaveLength(1);
    expect(joinTakeovers([], null)).toHaveLength(0);
  });
});

const box = (top: number, height = 2000, viewport = 500) => ({ top, height, viewport });

function atEnd(): Follower {
  const follower = new Follower();
  follower.moved(box(1500));
  return follower;
}

describe("following the end", () => {
  it("begins at once and holds while text is added", () => {
    const follower = atEnd();
    follower.moved(box(1600, 2100));
    expect(follower.isFollowing).toBe(true);
  });

  it("ends with the smallest move upwards, also within reach of the end", () => {
    const follower = atEnd();
    follower.scrolled(box(1490));
    expect(follower.isFollowing).toBe(false);
    follower.scrolled(box(1490, 2100));
    expect(follower.isFollowing).toBe(false);
  });

  it("ends when a wheel, a finger or a key goes up, before anything has moved", () => {
    const follower = atEnd();
    follower.moveUp();
    expect(follower.isFollowing).toBe(false);
  });

  it("begins again only when the user comes back to the end", () => {
    const follower = atEnd();
    follower.scrolled(box(800));
    follower.scrolled(box(1400));
    expect(follower.isFollowing).toBe(false);
    follower.scrolled(box(1460));
    expect(follower.isFollowing).toBe(true);
  });

  it("is not ended by a list that got shorter, or by a window that changed its height", () => {
    const follower = atEnd();
    follower.scrolled(box(1300, 1800));
    expect(follower.isFollowing).toBe(true);
    follower.scrolled(box(1200, 1800, 600));
    expect(follower.isFollowing).toBe(true);
  });

  it("knows the end by its reach", () => {
    expect(isAtEnd(box(1452))).toBe(true);
    expect(isAtEnd(box(1451))).toBe(false);
  });

  it("knows keys that go up", () => {
    expect(["ArrowUp", "PageUp", "Home"].every((key) => isUpKey(key, false))).toBe(true);
    expect(isUpKey(" ", true)).toBe(true);
    expect(isUpKey(" ", false)).toBe(false);
    expect(isUpKey("ArrowDown", false)).toBe(false);
  });
});

import { describe, expect, it } from "vitest";
import type { components } from "@/api/schema";
import { joinTakeovers } from "./use-takeovers";

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
    expect(joinTakeovers(turns, takeover(40, 12)).map((one) => [one.version, one.messageId])).toEqual([[9, 3], [12, 3], [40, 12]]);
  });

  it("have the last one before the record was read", () => {
    expect(joinTakeovers([], takeover(40, 12))).toHaveLength(1);
    expect(joinTakeovers([], null)).toHaveLength(0);
  });
});

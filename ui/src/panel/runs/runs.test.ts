import { describe, expect, it } from "vitest";
import { attemptText, earlierTurn, takeoverFacts, takeoverText } from "./attempt-words";
import { LABEL_PX, layOutLanes } from "./lanes";
import { attempt, ms, takenOverTurn, turnOf } from "./testing";

const C1 = { id: "00000000-0000-4000-8000-0000000000c1", name: "c1", host: "web", draining: false };

describe("lanes of a turn", () => {
  const layout = layOutLanes({ turn: takenOverTurn(), workers: [C1], now: ms(74), nextAt: ms(82), width: 432 });

  it("has a lane for each worker of the turn, then for idle ones", () => {
    expect(layout.names).toEqual(["a1", "b2", "c1"]);
    expect(layout.idle).toMatchObject([{ lane: 2, text: "idle, ready to take over" }]);
  });

  it("draws a lost attempt until the last sign of life", () => {
    const [lost, next] = layout.bars;
    expect(lost).toMatchObject({ lane: 0, look: "danger", label: "1 · lost" });
    expect((lost?.x ?? 0) + (lost?.width ?? 0)).toBeLessThan(next?.x ?? 0);
    expect(lost?.title).toBe("Attempt 1 on a1: lost, 41 s");
  });

  it("says how fast the takeover was, beside the lost attempt", () => {
    expect(layout.handovers).toMatchObject([{ from: { lane: 0 }, to: { lane: 1 }, tone: "ok", label: { lane: 0, text: "taken over in 2.1 s" } }]);
  });

  it("draws the next attempt after the present moment", () => {
    expect(layout.bars.at(-1)).toMatchObject({ look: "next", label: "3 · next", lane: 1 });
    expect(layout.nowX).toBeLessThan(layout.bars.at(-1)?.x ?? 0);
  });

  it("keeps all within the width, whatever the width", () => {
    for (const width of [240, 320, 432, 900]) {
      const { bars, ticks, handovers } = layOutLanes({ turn: takenOverTurn(), workers: [C1], now: ms(74), nextAt: ms(82), width });
      for (const bar of bars) {
        expect(bar.x).toBeGreaterThanOrEqual(LABEL_PX);
        expect(bar.x + bar.width).toBeLessThanOrEqual(width);
        expect(bar.label.length * 5).toBeLessThanOrEqual(Math.max(0, bar.width));
      }
      expect(ticks.length).toBeGreaterThan(1);
      expect(ticks.length).toBeLessThan(7);
      for (const { label } of handovers) if (label !== null) expect(label.x).toBeLessThan(width);
    }
  });

  it("bounds the bars and lanes of a turn with very many attempts", () => {
    const many = turnOf(Array.from({ length: 500 }, (_, index) => attempt(index + 1, `w${index}`, index, index + 0.5, { outcome: "retry" })));
    const { bars, names } = layOutLanes({ turn: many, workers: [C1], now: ms(500), nextAt: null, width: 432 });
    expect(bars.length).toBe(60);
    expect(names.length).toBeLessThanOrEqual(5);
    expect(bars.at(-1)?.title).toContain("Attempt 500");
  });

  it("has no line for the present in a turn that is over", () => {
    expect(layOutLanes({ turn: turnOf([attempt(1, "a1", 0, 10)]), workers: [], now: ms(99), nextAt: null, width: 432 }).nowX).toBeNull();
  });
});

describe("words about attempts", () => {
  it("says what a lost worker was doing", () => {
    expect(attemptText(attempt(1, "a1", 0, 5, { outcome: "lost", open_calls: ["execute"] }))).toBe("Lost while execute was running.");
  });

  it("says why a call is made again, and when", () => {
    expect(attemptText(attempt(1, "a1", 0, 5, { outcome: "retry", error: "The provider limits the rate", status_code: 429, retry_delay_ms: 8000 }))).toBe(
      "The provider limits the rate. The provider answered 429. The call is made again after 8.0 s.",
    );
  });

  it("says why a turn ended early", () => {
    const ended = attempt(1, "a1", 0, 5, { error: "The model ended the turn without an answer.", error_kind: "empty_answer" });
    expect(attemptText(ended)).toBe("Ended early. The model ended the turn without an answer.");
    expect(earlierTurn(turnOf([ended])).text).toBe("Ended early on a1. The model ended the turn without an answer.");
  });

  it("says what an interrupt kept", () => {
    expect(attemptText(attempt(1, "a1", 0, 5, { outcome: "interrupted", kept_chars: 812, queue_held: true }))).toBe(
      "Stopped by a person. 812 characters of the answer were kept. The queue is held.",
    );
  });

  it("gives the facts of a takeover", () => {
    const [lost, next] = takenOverTurn().attempts;
    if (lost === undefined || next?.takeover == null) throw new Error("The turn has no takeover.");
    expect(takeoverText(next.takeover)).toContain("Worker a1 died. This was not a stop by a person and not a deploy");
    expect(Object.fromEntries(takeoverFacts(next.takeover, lost))).toEqual({
      "Noticed by": "lock gone, 2 renewals missed",
      Kept: "3 messages",
      Commands: "1 call open, asked for again by id, run once",
      "Model calls": "0 paid twice",
    });
  });

  it("admits a model call that was made again", () => {
    const taken = takenOverTurn().attempts[1]?.takeover;
    if (taken == null) throw new Error("The turn has no takeover.");
    expect(Object.fromEntries(takeoverFacts({ ...taken, repeats_answer: true, resumed_calls: 0 }, null))).toMatchObject({
      "Model calls": "1 made again: its answer was not committed",
      Commands: "none were running",
    });
  });
});

describe("one line about an earlier turn", () => {
  it("tells the most telling thing that happened", () => {
    const texts = [
      turnOf([attempt(1, "a1", 0, 72)]),
      turnOf([attempt(1, "c1", 0, 10, { outcome: "released" }), attempt(2, "a1", 10.3, 20)]),
      turnOf([attempt(1, "a1", 0, 18, { outcome: "interrupted", kept_chars: 214 })]),
      turnOf([attempt(1, "a1", 0, 1, { outcome: "failed", error: "The key was refused.", status_code: 401 })]),
    ].map((turn) => {
      const line = earlierTurn(turn);
      return [line.look, line.text, line.meta];
    });
    expect(texts).toEqual([
      ["done", "Finished on a1", "1 m 12 s"],
      ["deploy", "Deploy: c1 gave the chat back, a1 went on", "0.3 s gap"],
      ["stopped", "Stopped by a person, 214 characters kept", "18 s"],
      ["failed", "The key was refused. The provider answered 401.", "1.0 s"],
    ]);
  });
});

import { describe, expect, it } from "vitest";
import { addSteps, nextStep, stepsOf, type TourSigns } from "./tour";

const nothing: TourSigns = { hasMessages: false, hasQueue: false, wasStopped: false, hasTakeover: false, runsOpen: false, wasReloaded: false };

describe("the tour of the first minute", () => {
  it("speaks of the first step that the chat has not shown yet", () => {
    expect(nextStep([])).toBe("start");
    expect(nextStep(stepsOf({ ...nothing, hasMessages: true }))).toBe("queue");
    expect(nextStep(["start", "queue", "kill"])).toBe("stop");
  });

  it("keeps what was done, also when its sign is gone again", () => {
    const queued = addSteps([], stepsOf({ ...nothing, hasMessages: true, hasQueue: true }));
    const later = addSteps(queued, stepsOf({ ...nothing, hasMessages: true }));
    expect(later).toBe(queued);
    expect(later).toEqual(["start", "queue"]);
  });

  it("counts a reload as well as a killed worker, and the record only after one of them", () => {
    expect(stepsOf({ ...nothing, wasReloaded: true })).toEqual(["kill"]);
    expect(stepsOf({ ...nothing, hasTakeover: true, runsOpen: true })).toEqual(["kill", "runs"]);
    expect(stepsOf({ ...nothing, runsOpen: true })).toEqual([]);
  });

  it("ends after the last step", () => {
    expect(nextStep(["start", "queue", "stop", "kill", "runs"])).toBeNull();
  });
});

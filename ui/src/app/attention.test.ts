import { describe, expect, it } from "vitest";
import { speechFor } from "./attention";

describe("what is spoken", () => {
  it("says Working once for a turn, also when it waited for a worker first", () => {
    expect(speechFor("waiting", "pending", null)).toEqual({ text: "Working", assertive: false });
    expect(speechFor("pending", "running", null)).toBeNull();
  });

  it("says when the reply is complete, and when it was stopped", () => {
    expect(speechFor("running", "waiting", null)?.text).toBe("Reply complete");
    expect(speechFor("interrupting", "waiting", null)?.text).toBe("Stopped");
  });

  it("interrupts the reader only for errors and for what needs a person", () => {
    expect(speechFor("running", "requires_action", null)).toEqual({ text: "Needs you", assertive: true });
    expect(speechFor("running", "error", "The key was refused")).toEqual({ text: "Failed: The key was refused", assertive: true });
  });

  it("is silent when nothing changed", () => {
    expect(speechFor("running", "running", null)).toBeNull();
  });
});

import { describe, expect, it } from "vitest";
import { endWords, findProcess } from "./process-foot";

const process = (id: string, command: string, running: boolean) => ({ id, command, running, background: true, exit_code: running ? null : 0 });

describe("the process of a command's card", () => {
  const processes = [process("p2", "npm run dev", true), process("p1", "npm run dev", false)];

  it("is found by its id, also after its end", () => {
    expect(findProcess(processes, "p1", "npm run dev")?.running).toBe(false);
    expect(findProcess(processes, "p9", "npm run dev")).toBeNull();
  });

  it("is found by its command while the call has no result, if it runs", () => {
    expect(findProcess(processes, "", "npm run dev")?.id).toBe("p2");
    expect(findProcess([process("p1", "make", false)], "", "make")).toBeNull();
    expect(findProcess(processes, "", "")).toBeNull();
  });

  it("says how it ended", () => {
    expect([-1, 0, 2].map((code) => endWords({ exit_code: code }))).toEqual([
      "The process was stopped.",
      "The process has ended.",
      "The process has ended with exit code 2.",
    ]);
  });
});

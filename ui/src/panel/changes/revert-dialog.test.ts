import { describe, expect, it } from "vitest";
import { revertWords } from "./revert-dialog";

describe("the question before a revert", () => {
  it("says that a new file is deleted", () => {
    expect(revertWords({ path: "a.py", kind: "added" }, "turn")).toBe("a.py was not there before this turn. It is deleted, and this cannot be undone.");
  });

  it("says which state the file gets", () => {
    expect(revertWords({ path: "a.py", kind: "changed" }, "git")).toContain("the content it had in the last commit");
  });
});

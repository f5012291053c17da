import { describe, expect, it } from "vitest";
import { commitWords, pullRequestWords } from "./branch-bar";

describe("the bar of the branch", () => {
  it("says how many commits are to push and behind", () => {
    expect(commitWords({ ahead: 2, behind: 0 })).toBe("2 to push");
    expect(commitWords({ ahead: 2, behind: 1 })).toBe("2 to push, 1 behind");
  });

  it("says nothing where nothing differs or is known", () => {
    expect(commitWords({ ahead: 0, behind: 0 })).toBeNull();
    expect(commitWords({})).toBeNull();
  });

  it("names the pull request by number and state", () => {
    expect(pullRequestWords({ number: 12, url: "https://github.com/a/b/pull/12", title: "Fix", state: "merged" })).toBe("#12 merged");
  });
});

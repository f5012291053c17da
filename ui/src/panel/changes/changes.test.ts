import { describe, expect, it } from "vitest";
import { findFile, nextScope, readRepository } from "./changes";
import { commitWords, pullRequestWords, revertWords } from "./changes-tab";

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

describe("the question before a revert", () => {
  it("says that a new file is deleted", () => {
    expect(revertWords({ path: "a.py", kind: "added" }, "turn")).toBe("a.py was not there before this turn. It is deleted, and this cannot be undone.");
  });

  it("says which state the file gets", () => {
    expect(revertWords({ path: "a.py", kind: "changed" }, "git")).toContain("the content it had in the last commit");
  });
});

const diff = (path: string) => `diff --git a/${path} b/${path}\n--- a/${path}\n+++ b/${path}\n@@ -1 +1 @@\n-a\n+b\n`;
const repository = (root: string, ...paths: string[]) =>
  readRepository({ repo_root: root, branch: "main", base: "", unified_diff: paths.map(diff).join(""), additions: 0, deletions: 0, changed_files: 0 });
const repositories = [repository("/home/user/app", "src/main.py", "main.py"), repository("/home/user/lib", "main.py")];

describe("a wanted file", () => {
  it.each([
    ["/home/user/app/src/main.py", "/home/user/app", "src/main.py"],
    ["/home/user/lib/main.py", "/home/user/lib", "main.py"],
    ["app/src/main.py", "/home/user/app", "src/main.py"],
    ["~/lib/main.py", "/home/user/lib", "main.py"],
    ["src/main.py", "/home/user/app", "src/main.py"],
    ["./src/main.py", "/home/user/app", "src/main.py"],
  ])("%s is found in its repository", (wanted, root, path) => {
    expect(findFile(repositories, wanted)).toEqual({ root, path });
  });

  it("that has not changed is not found", () => {
    expect(findFile(repositories, "README.md")).toBeNull();
  });

  it("is looked for in a wider scope each time", () => {
    expect([nextScope("turn"), nextScope("chat"), nextScope("git")]).toEqual(["chat", "git", null]);
  });
});

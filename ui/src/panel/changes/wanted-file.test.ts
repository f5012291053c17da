import { describe, expect, it } from "vitest";
import { readRepository } from "./repository";
import { findFile, nextScope } from "./wanted-file";

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

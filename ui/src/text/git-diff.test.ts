// @vitest-environment node
import { execFileSync } from "node:child_process";
import { chmodSync, mkdtempSync, renameSync, rmSync, unlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { type FileDiff, parseGitDiff, unquoteName } from "./git-diff";

/** A repository in which everything that a diff can show has changed. */
class Repository {
  readonly root = mkdtempSync(join(tmpdir(), "chatd-diff-"));

  write(name: string, content: string | Uint8Array): void {
    writeFileSync(join(this.root, name), content);
  }

  git(...words: string[]): string {
    const identity = ["-c", "user.name=dev", "-c", "user.email=dev@localhost", "-c", "init.defaultBranch=main"];
    return execFileSync("git", ["-C", this.root, ...identity, ...words], {
      encoding: "utf8",
      env: { PATH: process.env.PATH ?? "/usr/bin:/bin", HOME: this.root, GIT_CONFIG_NOSYSTEM: "1" },
    });
  }
}

const LINES = Array.from({ length: 40 }, (_, index) => `line ${index + 1}`);
const repository = new Repository();
let files = new Map<string, FileDiff>();

function one(name: string): FileDiff {
  const found = files.get(name);
  if (found === undefined) throw new Error(`${name} is not among ${[...files.keys()].join(", ")}`);
  return found;
}

beforeAll(() => {
  const { root } = repository;
  repository.git("init", "-q");
  repository.write("changed.py", `${LINES.join("\n")}\n`);
  repository.write("moved.txt", `${LINES.join("\n")}\n`);
  repository.write("old name.txt", `${LINES.join("\n")}\n`);
  repository.write("gone.txt", "a\nb\n");
  repository.write("script.sh", "echo hi\n");
  repository.write("end.txt", "one\ntwo");
  repository.write("image.bin", new Uint8Array([0, 1, 2, 3]));
  repository.write("with space.txt", "before\n");
  repository.write("grüße\t.txt", "before\n");
  repository.write("tricky.txt", "-- old\n++ new\n");
  repository.write("dos.txt", "one\r\ntwo\r\n");
  repository.git("add", "-A");
  repository.git("commit", "-qm", "first");
  const edited = [...LINES];
  edited[1] = "line two";
  edited.splice(30, 1, "line thirty-one", "one more");
  repository.write("changed.py", `${edited.join("\n")}\n`);
  renameSync(join(root, "moved.txt"), join(root, "moved2.txt"));
  renameSync(join(root, "old name.txt"), join(root, "new name.txt"));
  repository.write("new name.txt", `${[...LINES, "more"].join("\n")}\n`);
  unlinkSync(join(root, "gone.txt"));
  chmodSync(join(root, "script.sh"), 0o755);
  repository.write("end.txt", "one\ntwo\nthree");
  repository.write("image.bin", new Uint8Array([0, 9, 2, 3]));
  repository.write("with space.txt", "after\n");
  repository.write("grüße\t.txt", "after\n");
  repository.write("tricky.txt", "@@ -1 +1 @@\ndiff --git a/x b/x\n");
  repository.write("dos.txt", "one\r\n2\r\n");
  repository.write("empty.txt", "");
  repository.write("fresh.txt", "only\n");
  repository.git("add", "-A");
  const text = repository.git("diff", "--cached", "-M", "--no-color", "--src-prefix=a/", "--dst-prefix=b/", "HEAD");
  files = new Map(parseGitDiff(text).files.map((file) => [file.path, file]));
});

afterAll(() => rmSync(repository.root, { recursive: true, force: true }));

describe("the output of git diff", () => {
  it("has every file once", () => {
    expect([...files.keys()].sort()).toEqual(
      [
        "changed.py",
        "dos.txt",
        "empty.txt",
        "end.txt",
        "fresh.txt",
        "gone.txt",
        "grüße\t.txt",
        "image.bin",
        "moved2.txt",
        "new name.txt",
        "script.sh",
        "tricky.txt",
        "with space.txt",
      ].sort(),
    );
  });

  it("numbers lines on both sides, and counts them", () => {
    const file = one("changed.py");
    expect([file.kind, file.added, file.removed, file.hunks.length]).toEqual(["changed", 3, 2, 2]);
    const changed = file.hunks.flatMap((hunk) => hunk.lines).filter((line) => line.type !== "context");
    expect(changed.map((line) => [line.type, line.oldNumber, line.newNumber, line.text])).toEqual([
      ["del", 2, null, "line 2"],
      ["add", null, 2, "line two"],
      ["del", 31, null, "line 31"],
      ["add", null, 31, "line thirty-one"],
      ["add", null, 32, "one more"],
    ]);
    expect(file.hunks[1]).toMatchObject({ oldStart: 28, newStart: 28, oldCount: 7, newCount: 8 });
  });

  it("knows the former name of a renamed file, with and without changes", () => {
    expect(one("moved2.txt")).toMatchObject({ kind: "renamed", oldPath: "moved.txt", added: 0, hunks: [] });
    expect(one("new name.txt")).toMatchObject({ kind: "renamed", oldPath: "old name.txt", added: 1 });
  });

  it("tells added, deleted and empty files", () => {
    expect(one("gone.txt")).toMatchObject({ kind: "deleted", removed: 2, added: 0 });
    expect(one("fresh.txt")).toMatchObject({ kind: "added", removed: 0, added: 1 });
    expect(one("empty.txt")).toMatchObject({ kind: "added", hunks: [] });
  });

  it("shows a change of mode", () => {
    expect(one("script.sh")).toMatchObject({ kind: "changed", modes: ["100644", "100755"], hunks: [] });
  });

  it("marks a binary file", () => {
    expect(one("image.bin")).toMatchObject({ isBinary: true, hunks: [] });
  });

  it("marks lines without a line break at the end", () => {
    const lines = one("end.txt").hunks.flatMap((hunk) => hunk.lines);
    expect(lines.map((line) => [line.type, line.text, line.endsWithoutNewline])).toEqual([
      ["context", "one", false],
      ["del", "two", true],
      ["add", "two", false],
      ["add", "three", true],
    ]);
  });

  it("reads names with spaces, and names in quotes", () => {
    expect(one("with space.txt")).toMatchObject({ added: 1, removed: 1 });
    expect(one("grüße\t.txt")).toMatchObject({ added: 1, removed: 1 });
  });

  it("takes lines of a file that look like a diff as lines", () => {
    const lines = one("tricky.txt").hunks.flatMap((hunk) => hunk.lines);
    expect(lines.map((line) => line.text)).toEqual(["-- old", "++ new", "@@ -1 +1 @@", "diff --git a/x b/x"]);
  });

  it("leaves out the carriage return", () => {
    expect(
      one("dos.txt")
        .hunks.flatMap((hunk) => hunk.lines)
        .map((line) => line.text),
    ).toEqual(["one", "two", "2"]);
  });

  it("names files of a merge in progress without their lines", () => {
    const text =
      "diff --cc a.txt\nindex 1,2..3\n--- a/a.txt\n+++ b/a.txt\n@@@ -1,1 -1,1 +1,5 @@@\n++<<<<<<< HEAD\ndiff --git a/b.txt b/b.txt\n--- a/b.txt\n+++ b/b.txt\n@@ -1 +1 @@\n-x\n+y\n";
    expect(parseGitDiff(text).files.map((file) => [file.path, file.kind, file.added])).toEqual([
      ["a.txt", "conflict", 0],
      ["b.txt", "changed", 1],
    ]);
  });

  it("gives text that is no diff as a note", () => {
    expect(parseGitDiff("The diff is not shown: it is over 3145728 bytes.\n")).toEqual({ files: [], note: "The diff is not shown: it is over 3145728 bytes." });
    expect(parseGitDiff("")).toEqual({ files: [], note: "" });
  });

  it("never throws, wherever the text is cut", () => {
    const text = repository.git("diff", "--cached", "-M", "HEAD");
    for (let end = 0; end < text.length; end += 7) expect(() => parseGitDiff(text.slice(0, end))).not.toThrow();
  });
});

describe("names in quotes", () => {
  it("decodes bytes and escapes", () => {
    expect(unquoteName('"gr\\303\\274n \\"x\\"\\t.txt"')).toBe('grün "x"\t.txt');
    expect(unquoteName("plain.txt")).toBe("plain.txt");
  });
});

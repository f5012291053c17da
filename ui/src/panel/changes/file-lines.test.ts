import { describe, expect, it } from "vitest";
import { drawHunks, titledHunk } from "@/text/diff";
import { parseGitDiff } from "@/text/git-diff";
import { changeMark, keepSame, readRepository, withMark } from "./changes";
import { expandHunks, gapBefore, matches } from "./file-lines";
import { pairLines } from "./side-by-side";

const TEXT = `diff --git a/a.py b/a.py
--- a/a.py
+++ b/a.py
@@ -18,4 +18,4 @@ the loop
 def drain(pool):
-    rows = await pool.fetch(CLAIM, n)
-    gone = 1
+    rows = await tx.fetch(CLAIM, n)
 \treturn rows
`;

function fileOf(text: string) {
  const file = parseGitDiff(text).files[0];
  if (file === undefined) throw new Error("There is no file in the diff.");
  return file;
}

describe("the view side by side", () => {
  const lines = drawHunks(fileOf(TEXT).hunks.map(titledHunk), true).flatMap((hunk) => hunk.lines);

  it("sets removed lines beside added ones", () => {
    const pairs = pairLines(lines).map(({ left, right }) => [left?.oldNumber ?? null, right?.newNumber ?? null]);
    expect(pairs).toEqual([
      [18, 18],
      [19, 19],
      [20, null],
      [21, 20],
    ]);
  });
});

describe("repositories that are read again", () => {
  const read = (text: string) =>
    readRepository({ repo_root: "/home/dev/app", branch: "main", base: "", unified_diff: text, additions: 0, deletions: 0, changed_files: 0 });

  it("stay the same objects while their diff is the same", () => {
    const before = [read(TEXT)];
    expect(keepSame(before, [read(TEXT)])).toBe(before);
    expect(keepSame(before, [read("")])).not.toBe(before);
  });

  it("say why there is no diff", () => {
    expect(read("The diff is not shown: it is too large.\n").note).toBe("The diff is not shown: it is too large.");
  });
});

describe("files that were seen", () => {
  it("are not seen any more when their changes differ", () => {
    const changed = TEXT.replace("gone = 1", "gone = 2");
    expect(changeMark("/r", fileOf(TEXT))).toBe(changeMark("/r", fileOf(TEXT)));
    expect(changeMark("/r", fileOf(TEXT))).not.toBe(changeMark("/r", fileOf(changed)));
  });

  it("are remembered for a bounded number of chats", () => {
    let stored = {};
    for (let chat = 0; chat < 50; chat += 1) stored = withMark(stored, `chat ${chat}`, "a.py 1", true);
    expect(Object.keys(stored)).toHaveLength(30);
    expect(withMark(stored, "chat 49", "a.py 1", false)).toMatchObject({ "chat 49": [] });
  });
});

const LINES = Array.from({ length: 60 }, (_, index) => `line ${index + 1}`);
const NEW = LINES.with(9, "line ten").toSpliced(40, 1);
const TWO_HUNKS = "diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -10 +10 @@\n-line 10\n+line ten\n@@ -41 +40,0 @@\n-line 41\n";

describe("unchanged lines above a hunk", () => {
  const file = fileOf(TWO_HUNKS);

  it("are counted up to the hunk before", () => {
    expect([gapBefore(file.hunks, 0), gapBefore(file.hunks, 1)]).toEqual([9, 30]);
  });

  it("are put in with the numbers of both sides", () => {
    const [first, second] = expandHunks(
      file,
      NEW,
      new Map([
        [0, 40],
        [1, 2],
      ]),
    ).hunks;
    expect(first?.lines.map((line) => line.text).slice(0, 2)).toEqual(["line 1", "line 2"]);
    expect(first).toMatchObject({ oldStart: 1, newStart: 1, oldCount: 10, newCount: 10 });
    expect(second?.lines.map((line) => [line.oldNumber, line.newNumber, line.text])).toEqual([
      [39, 39, "line 39"],
      [40, 40, "line 40"],
      [41, null, "line 41"],
    ]);
  });

  it("leave no gap when all are shown", () => {
    const whole = expandHunks(
      file,
      NEW,
      new Map([
        [0, 40],
        [1, 40],
      ]),
    );
    expect([gapBefore(whole.hunks, 0), gapBefore(whole.hunks, 1)]).toEqual([0, 0]);
  });

  it("are not taken from a file that has changed since", () => {
    expect([matches(file, NEW), matches(file, LINES)]).toEqual([true, false]);
  });
});

import { describe, expect, it } from "vitest";
import { expandHunks, gapBefore, matches } from "./expand";
import { parseGitDiff } from "./git-diff";

const LINES = Array.from({ length: 60 }, (_, index) => `line ${index + 1}`);
const NEW = LINES.with(9, "line ten").toSpliced(40, 1);
const TEXT = "diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -10 +10 @@\n-line 10\n+line ten\n@@ -41 +40,0 @@\n-line 41\n";

function fileOf(text: string) {
  const file = parseGitDiff(text).files[0];
  if (file === undefined) throw new Error("There is no file in the diff.");
  return file;
}

describe("unchanged lines above a hunk", () => {
  const file = fileOf(TEXT);

  it("are counted up to the hunk before", () => {
    expect([gapBefore(file.hunks, 0), gapBefore(file.hunks, 1)]).toEqual([9, 30]);
  });

  it("are put in with the numbers of both sides", () => {
    const [first, second] = expandHunks(file, NEW, new Map([[0, 40], [1, 2]])).hunks;
    expect(first?.lines.map((line) => line.text).slice(0, 2)).toEqual(["line 1", "line 2"]);
    expect(first).toMatchObject({ oldStart: 1, newStart: 1, oldCount: 10, newCount: 10 });
    expect(second?.lines.map((line) => [line.oldNumber, line.newNumber, line.text])).toEqual([
      [39, 39, "line 39"],
      [40, 40, "line 40"],
      [41, null, "line 41"],
    ]);
  });

  it("leave no gap when all are shown", () => {
    const whole = expandHunks(file, NEW, new Map([[0, 40], [1, 40]]));
    expect([gapBefore(whole.hunks, 0), gapBefore(whole.hunks, 1)]).toEqual([0, 0]);
  });

  it("are not taken from a file that has changed since", () => {
    expect([matches(file, NEW), matches(file, LINES)]).toEqual([true, false]);
  });
});

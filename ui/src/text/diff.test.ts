import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { compareLines } from "./compare-lines";
import { countLines, cutHunks, diffOfEdit, diffTexts, drawHunks, looseType, parseHunks, titledHunk } from "./diff";

const DIFF = `--- a/src/dispatch.py
+++ b/src/dispatch.py
@@ -18,4 +18,5 @@ the loop
 async def drain(pool, n=100):
-    rows = await pool.fetch(CLAIM, n)
-    for row in rows:
-        await send(row)
+    async with pool.tx() as tx:
+        rows = await tx.fetch(CLAIM, n)
+        for row in rows:
+            await send(row, key=row["id"])
@@ -40 +41 @@
-last
+last line
\\ No newline at end of file
`;

const linesOf = (text: string) => parseHunks(text).flatMap((hunk) => hunk.lines);
const signs = { context: " ", add: "+", del: "-" } as const;

describe("the diff of a file", () => {
  it("numbers lines by the file that they are in", () => {
    expect(linesOf(DIFF).map((line) => [signs[line.type], line.newNumber ?? line.oldNumber])).toEqual([
      [" ", 18],
      ["-", 19],
      ["-", 20],
      ["-", 21],
      ["+", 19],
      ["+", 20],
      ["+", 21],
      ["+", 22],
      ["-", 40],
      ["+", 41],
    ]);
  });

  it("has a title for each hunk", () => {
    expect(parseHunks(DIFF).map((hunk) => titledHunk(hunk).title)).toEqual(["@@ −18,4 +18,5 @@ the loop", "@@ −40 +41 @@"]);
  });

  it("counts added and removed lines", () => {
    expect(countLines(linesOf(DIFF))).toEqual({ added: 5, removed: 4 });
  });

  it("marks the words that changed", () => {
    const marks = drawHunks(parseHunks(DIFF).map(titledHunk), false).flatMap((hunk) =>
      hunk.lines.flatMap((line) => (line.changed === null ? [] : [line.body.slice(...line.changed)])),
    );
    expect(marks).toEqual(["pool", "tx", ', key=row["id"]', " line"]);
  });

  it("has no lines for text that is not a diff", () => {
    expect(linesOf("nothing here\n+++")).toEqual([]);
  });
});

describe("the diff of two texts", () => {
  const text = (before: string, after: string) => diffTexts(before, after, compareLines).map((line) => signs[line.type] + line.text);

  it("shows an added, a removed and a changed line", () => {
    expect(text("a\nb\nc", "a\nx\nc\nd")).toEqual([" a", "-b", "+x", " c", "+d"]);
  });

  it("shows nothing as changed between equal texts", () => expect(text("a\nb", "a\nb")).toEqual([" a", " b"]));

  it("shows a whole text that was not there before as added", () => expect(text("", "a\nb")).toEqual(["+a", "+b"]));

  it("shows two texts as removed and added whole if they are too long to compare", () => {
    const long = (word: string) => Array.from({ length: 1100 }, (_, index) => `${word} ${index % 7}`).join("\n");
    const types = diffTexts(`same\n${long("a")}`, `same\n${long("b")}`, compareLines).map((line) => line.type);
    expect([types[0], types.indexOf("add"), types.lastIndexOf("del")]).toEqual(["context", 1101, 1100]);
  });

  it("always contains both texts in full, with their numbers", () => {
    const lines = fc.array(fc.constantFrom("a", "b", "c"), { minLength: 1, maxLength: 12 });
    fc.assert(
      fc.property(lines, lines, fc.constantFrom(compareLines, undefined), (before, after, compare) => {
        const made = diffTexts(before.join("\n"), after.join("\n"), compare);
        const old = made.filter((line) => line.type !== "add");
        const now = made.filter((line) => line.type !== "del");
        expect(old.map((line) => [line.oldNumber, line.text])).toEqual(before.map((line, index) => [index + 1, line]));
        expect(now.map((line) => [line.newNumber, line.text])).toEqual(after.map((line, index) => [index + 1, line]));
      }),
    );
  });

  it("shows an edit by the lines around it, without numbers", () => {
    const lines = diffOfEdit("a\nb\nc\n", "a\nB\nc\n");
    expect(lines.map((line) => `${line.type} ${line.text}`)).toEqual(["context a", "del b", "add B", "context c"]);
    expect(lines.every((line) => line.oldNumber === null && line.newNumber === null)).toBe(true);
  });

  it("shows an edit from nothing as added lines", () => {
    expect(diffOfEdit("", "x\ny").map((line) => line.type)).toEqual(["add", "add"]);
  });
});

const TEXT = `@@ -18,4 +18,4 @@ the loop
 def drain(pool):
-    rows = await pool.fetch(CLAIM, n)
-    gone = 1
+    rows = await tx.fetch(CLAIM, n)
 \treturn rows
`;

describe("lines of a diff as they are drawn", () => {
  const hunks = drawHunks(parseHunks(TEXT).map(titledHunk), true);
  const [hunk] = hunks;
  const lines = hunk?.lines ?? [];

  it("parts the indent from the text, and marks changed words in the text", () => {
    const removed = lines[1];
    expect([removed?.indent, removed?.body]).toEqual([4, "rows = await pool.fetch(CLAIM, n)"]);
    expect(removed?.body.slice(...(removed.changed ?? [0, 0]))).toBe("pool");
    expect(lines[3]?.body.slice(...(lines[3].changed ?? [0, 0]))).toBe("tx");
    expect(lines[4]?.indent).toBe(4);
  });

  it("keeps the indent in the text where lines are not wrapped", () => {
    const [plain] = drawHunks(parseHunks(TEXT).map(titledHunk), false);
    expect([plain?.lines[1]?.indent, plain?.lines[1]?.body]).toEqual([0, "    rows = await pool.fetch(CLAIM, n)"]);
  });

  it("has a key of its own for each line", () => {
    expect(new Set(lines.map((line) => line.key)).size).toBe(lines.length);
  });

  it("cuts a huge diff within a hunk", () => {
    expect(cutHunks(hunks, 2).map((one) => one.lines.length)).toEqual([2]);
  });
});

describe("a diff that a model writes", () => {
  it.each([
    ["+ x", "add"],
    ["-x", "del"],
    [" x", "context"],
    ["", "context"],
    ["@@ somewhere @@", "head"],
    ["--- a/x", "head"],
    ["+++ b/x", "head"],
    ["--x", "del"],
    ["diff --git a/x b/x", "head"],
  ])("%s is read as %s", (line, type) => {
    expect(looseType(line)).toBe(type);
  });
});

import { describe, expect, it } from "vitest";
import { countDiff, diffOfEdit, readDiff } from "./diff";

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

function marks(diff: ReturnType<typeof readDiff>): readonly string[] {
  return diff.flatMap((line) => (line.changed === null ? [] : [line.text.slice(...line.changed)]));
}

describe("unified diff", () => {
  it("numbers lines by the file that they are in", () => {
    const numbers = readDiff(DIFF).map((line) => [line.type, line.number]);
    expect(numbers).toEqual([
      ["context", 18],
      ["del", 19],
      ["del", 20],
      ["del", 21],
      ["add", 19],
      ["add", 20],
      ["add", 21],
      ["add", 22],
      ["hunk", null],
      ["del", 40],
      ["add", 41],
    ]);
  });

  it("counts added and removed lines", () => {
    expect(countDiff(readDiff(DIFF))).toEqual({ added: 5, removed: 4 });
  });

  it("marks the words that changed", () => {
    expect(marks(readDiff(DIFF))).toEqual(["pool", "tx", ', key=row["id"]', " line"]);
  });

  it("has no lines for text that is no diff", () => {
    expect(readDiff("nothing here\n+++")).toEqual([]);
  });

  it("shows an edit by the lines around it", () => {
    const lines = diffOfEdit("a\nb\nc\n", "a\nB\nc\n");
    expect(lines.map((line) => `${line.type} ${line.text}`)).toEqual(["context a", "del b", "add B", "context c"]);
  });

  it("shows an edit from nothing as added lines", () => {
    expect(diffOfEdit("", "x\ny").map((line) => line.type)).toEqual(["add", "add"]);
  });
});

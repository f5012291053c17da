import fc from "fast-check";
import { expect, it } from "vitest";
import { diffLines } from "./line-diff";

const marks = { same: " ", added: "+", removed: "-" } as const;
const text = (before: string, after: string) => diffLines(before, after).map((line) => marks[line.kind] + line.text);

it("shows an added, a removed and a changed line", () => {
  expect(text("a\nb\nc", "a\nx\nc\nd")).toEqual([" a", "-b", "+x", " c", "+d"]);
});

it("shows nothing as changed between equal texts", () => expect(text("a\nb", "a\nb")).toEqual([" a", " b"]));

it("shows a whole text that was not there before as added", () => expect(text("", "a\nb")).toEqual(["+a", "+b"]));

it("always contains both texts in full", () => {
  const lines = fc.array(fc.constantFrom("a", "b", "c"), { minLength: 1, maxLength: 12 });
  fc.assert(
    fc.property(lines, lines, (before, after) => {
      const made = diffLines(before.join("\n"), after.join("\n"));
      expect(made.filter((line) => line.kind !== "added").map((line) => line.text)).toEqual(before);
      expect(made.filter((line) => line.kind !== "removed").map((line) => line.text)).toEqual(after);
    }),
  );
});

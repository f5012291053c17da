import { describe, expect, it } from "vitest";
import type { UserRow } from "../rows/row";
import { shownMarks, turnsOf } from "./turn-rail";

const prompt = (messageId: number | null, text: string): UserRow => ({
  kind: "user",
  key: `m${messageId ?? "new"}`,
  messageId,
  isTight: false,
  text,
  files: [],
  references: [],
  at: null,
  createdBy: null,
  isSteering: false,
  pending: null,
});

describe("the prompts of a chat", () => {
  it("are its rows of users that the server has, each by the words it begins with", () => {
    const rows = [prompt(1, "Rename\n\nthe column"), prompt(3, " "), prompt(5, "x".repeat(500)), prompt(null, "on its way")];
    expect(turnsOf(rows).map((turn) => [turn.index, turn.text])).toEqual([
      [0, "Rename the column"],
      [1, "Files only"],
      [2, `${"x".repeat(89)}…`],
    ]);
  });
});

describe("the marks of a rail", () => {
  it.each([
    [6, 0, { from: 0, to: 6 }],
    [100, 0, { from: 0, to: 20 }],
    [100, 50, { from: 40, to: 60 }],
    [100, 99, { from: 80, to: 100 }],
  ])("of %i prompts with the reader at %i are the twenty around the reader", (count, current, marks) => {
    expect(shownMarks(count, current)).toEqual(marks);
  });
});

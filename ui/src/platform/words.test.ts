import { describe, expect, it } from "vitest";
import { countText, moneyText, plural, readMoney, relativeText, tokensText } from "./words";

describe("moments", () => {
  const NOW = new Date("2026-11-18T12:00:00");
  it.each([
    ["2026-11-18T11:59:30", "now"],
    ["2026-11-18T11:20:00", "40 m"],
    ["2026-11-18T09:00:00", "3 h"],
    ["2026-11-16T09:00:00", "Mon"],
    ["2026-03-03T09:00:00", "3 Mar"],
    ["2025-03-03T09:00:00", "3 Mar 2025"],
    ["2026-11-18T12:00:30", "now"],
    ["2026-11-18T12:40:30", "in 40 m"],
    ["2026-11-18T15:00:30", "in 3 h"],
    ["2026-11-20T09:00:00", "20 Nov"],
    ["2027-02-16T09:00:00", "16 Feb 2027"],
  ])("says of %s: %s", (moment, text) => expect(relativeText(new Date(moment), NOW)).toBe(text));
});

describe("amounts", () => {
  it.each([
    [0, "$0.00"],
    [1_200_000, "$1.20"],
    [391_204_000, "$391.20"],
    [1_234_567_000_000, "$1,234,567.00"],
    [10_000, "$0.01"],
    [400, "$0.0004"],
  ])("writes %i micros as %s", (micros, text) => expect(moneyText(micros)).toBe(text));

  it.each([
    ["10", 10_000_000],
    ["$10.50", 10_500_000],
    [" 1,000 ", 1_000_000_000],
    ["0.000001", 1],
    ["0", null],
    ["-1", null],
    ["ten", null],
    ["1e3", null],
    ["", null],
  ])("reads %j", (text, micros) => expect(readMoney(text)).toBe(micros));

  it.each([
    [18_204, "18,204"],
    [1_500_000, "1.5 M"],
    [412_000_000, "412 M"],
    [2_500_000_000, "2.5 G"],
  ])("counts %i as %s", (count, text) => expect(countText(count)).toBe(text));

  it.each([
    [200_000, "200k"],
    [1_000_000, "1M"],
    [1_048_576, "1M"],
    [32_768, "32.8k"],
    [512, "512"],
    [null, ""],
  ])("shortens %j tokens to %s", (tokens, text) => expect(tokensText(tokens)).toBe(text));
});

it.each([
  [0, "0 files"],
  [1, "1 file"],
  [1204, "1,204 files"],
])("counts %i as %s", (count, text) => expect(plural(count, "file")).toBe(text));

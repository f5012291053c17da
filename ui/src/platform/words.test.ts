import { describe, expect, it } from "vitest";
import { countText, moneyText, plural, readMoney, tokensText } from "./words";

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

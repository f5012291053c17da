import { describe, expect, it } from "vitest";
import { daysOf, makeChart, roundTop } from "./cost-chart";

const cost = (day: string, model: string, micros: number) => ({ day, model, total_cost_micros: micros });

describe("the chart of costs", () => {
  it("has a bar for every day, also those without a call", () => {
    const chart = makeChart([cost("2026-11-02", "a", 5)], "2026-11-01", "2026-11-04");
    expect(chart.bars.map((bar) => [bar.day, bar.total])).toEqual([
      ["2026-11-01", 0],
      ["2026-11-02", 5],
      ["2026-11-03", 0],
    ]);
  });

  it("stacks the models of a day, the dearest of all days at the bottom", () => {
    const chart = makeChart([cost("2026-11-01", "small", 2), cost("2026-11-01", "large", 8)], "2026-11-01", "2026-11-02");
    expect(chart.series).toEqual(["large", "small"]);
    expect(chart.bars[0]?.pieces).toEqual([
      { series: 0, from: 0, to: 8 },
      { series: 1, from: 8, to: 10 },
    ]);
  });

  it("joins the cheapest models when there are more than the colours", () => {
    const costs = ["a", "b", "c", "d", "e", "f"].map((model, rank) => cost("2026-11-01", model, 10 - rank));
    const chart = makeChart(costs, "2026-11-01", "2026-11-02");
    expect(chart.series).toEqual(["a", "b", "c", "d", "Others"]);
    expect(chart.bars[0]?.pieces.at(-1)).toEqual({ series: 4, from: 34, to: 45 });
  });

  it("leaves no gap when a summer time begins", () => expect(daysOf("2026-03-28", "2026-03-31")).toHaveLength(3));

  it.each([
    [0, 1_000_000],
    [28_690_000, 50_000_000],
    [10, 10],
    [11, 20],
    [999, 1000],
  ])("rounds the top of %i up to %i", (value, top) => expect(roundTop(value)).toBe(top));
});

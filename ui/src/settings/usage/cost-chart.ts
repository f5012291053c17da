/** Costs by day as stacked bars: which models get a colour of their own, and how high each piece is. */
export interface DayModelCost {
  day: string;
  model: string;
  total_cost_micros: number;
}

export interface Piece {
  series: number;
  from: number;
  to: number;
}

export interface Bar {
  day: string;
  total: number;
  pieces: readonly Piece[];
}

export interface Chart {
  /** The dearest models; the last one may be "Others". */
  series: readonly string[];
  bars: readonly Bar[];
  /** The top of the scale, a round number of micros. */
  top: number;
  ticks: readonly number[];
}

export const MAX_SERIES = 4;
const DAY_MS = 86_400_000;

/** Every day from `start` up to `end`, which is not part of it. */
export function daysOf(start: string, end: string): string[] {
  const days: string[] = [];
  for (let at = Date.parse(start); at < Date.parse(end); at += DAY_MS) days.push(new Date(at).toISOString().slice(0, 10));
  return days;
}

/** 1, 2 or 5 times a power of ten, above `value`. */
export function roundTop(value: number): number {
  if (value <= 0) return 1_000_000;
  const power = 10 ** Math.floor(Math.log10(value));
  return ([1, 2, 5, 10].find((step) => step * power >= value) ?? 10) * power;
}

export function makeChart(costs: readonly DayModelCost[], start: string, end: string): Chart {
  const byModel = new Map<string, number>();
  for (const cost of costs) byModel.set(cost.model, (byModel.get(cost.model) ?? 0) + cost.total_cost_micros);
  const ranked = [...byModel].sort((a, b) => b[1] - a[1]).map(([model]) => model);
  const named = ranked.length <= MAX_SERIES + 1 ? ranked : ranked.slice(0, MAX_SERIES);
  const series = named.length < ranked.length ? [...named, "Others"] : named;
  const place = new Map(ranked.map((model, rank) => [model, Math.min(rank, series.length - 1)]));
  const sums = new Map<string, number[]>();
  for (const cost of costs) {
    const row = sums.get(cost.day) ?? series.map(() => 0);
    const at = place.get(cost.model) ?? 0;
    row[at] = (row[at] ?? 0) + cost.total_cost_micros;
    sums.set(cost.day, row);
  }
  const bars = daysOf(start, end).map((day) => stack(day, sums.get(day) ?? []));
  const top = roundTop(Math.max(0, ...bars.map((bar) => bar.total)));
  return { series, bars, top, ticks: [0, 0.25, 0.5, 0.75, 1].map((part) => part * top) };
}

function stack(day: string, row: readonly number[]): Bar {
  let total = 0;
  const pieces = row.map((value, series) => ({ series, from: total, to: (total += value) })).filter((piece) => piece.to > piece.from);
  return { day, total, pieces };
}

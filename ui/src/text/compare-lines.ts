/** The lines that two texts have in common, and those they do not: longest common subsequence. */
import type { Compare, DiffLine } from "./diff";

/** Larger texts are shown as removed and added whole: the table grows with the product of both sides. */
const MAX_CELLS = 1_000_000;

export const compareLines: Compare = (old, now) => {
  const removed = old.map(() => "del" as const);
  const added = now.map(() => "add" as const);
  if (removed.length === 0 || added.length === 0 || removed.length * added.length > MAX_CELLS) return [...removed, ...added];
  const lengths = commonLengths(old, now);
  const common = (i: number, j: number) => lengths[i]?.[j] ?? 0;
  const types: DiffLine["type"][] = [];
  let [i, j] = [0, 0];
  while (i < old.length && j < now.length) {
    const isSame = old[i] === now[j];
    const isRemoved = !isSame && common(i + 1, j) >= common(i, j + 1);
    types.push(isSame ? "context" : isRemoved ? "del" : "add");
    if (isSame || isRemoved) i += 1;
    if (!isRemoved) j += 1;
  }
  return [...types, ...removed.slice(i), ...added.slice(j)];
};

/** `[i][j]`: how many lines the ends of both texts from i and j on have in common. */
function commonLengths(old: readonly string[], now: readonly string[]): readonly Uint32Array[] {
  const table = Array.from({ length: old.length + 1 }, () => new Uint32Array(now.length + 1));
  for (let i = old.length - 1; i >= 0; i -= 1) {
    const [row, below] = [table[i], table[i + 1]];
    if (row === undefined || below === undefined) break;
    for (let j = now.length - 1; j >= 0; j -= 1) {
      row[j] = old[i] === now[j] ? (below[j + 1] ?? 0) + 1 : Math.max(below[j] ?? 0, row[j + 1] ?? 0);
    }
  }
  return table;
}

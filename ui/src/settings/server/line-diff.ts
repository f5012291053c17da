/** The lines that two short texts have in common, and those they do not (longest common subsequence). */
export interface DiffLine {
  kind: "same" | "added" | "removed";
  text: string;
}

/** Longer texts are shown as removed and added whole: the table would grow with the product of both. */
export const MAX_LINES = 1000;

export function diffLines(before: string, after: string): DiffLine[] {
  const old = before === "" ? [] : before.split("\n");
  const now = after === "" ? [] : after.split("\n");
  if (old.length > MAX_LINES || now.length > MAX_LINES) return [...old.map(removed), ...now.map(added)];
  const lengths = commonLengths(old, now);
  const lines: DiffLine[] = [];
  let i = 0;
  let j = 0;
  while (i < old.length || j < now.length) {
    const left = old[i];
    const right = now[j];
    if (left !== undefined && left === right) {
      lines.push({ kind: "same", text: left });
      i++;
      j++;
    } else if (right === undefined || (left !== undefined && at(lengths, i + 1, j) >= at(lengths, i, j + 1))) {
      lines.push(removed(left ?? ""));
      i++;
    } else {
      lines.push(added(right));
      j++;
    }
  }
  return lines;
}

const removed = (text: string): DiffLine => ({ kind: "removed", text });
const added = (text: string): DiffLine => ({ kind: "added", text });
const at = (table: readonly Uint16Array[], i: number, j: number): number => table[i]?.[j] ?? 0;

/** `[i][j]`: how many lines the ends of both texts from i and j on have in common. */
function commonLengths(old: readonly string[], now: readonly string[]): Uint16Array[] {
  const table = Array.from({ length: old.length + 1 }, () => new Uint16Array(now.length + 1));
  for (let i = old.length - 1; i >= 0; i--) {
    const row = table[i];
    if (row === undefined) continue;
    for (let j = now.length - 1; j >= 0; j--) {
      row[j] = old[i] === now[j] ? at(table, i + 1, j + 1) + 1 : Math.max(at(table, i + 1, j), at(table, i, j + 1));
    }
  }
  return table;
}

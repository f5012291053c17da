/** Heights of rows before they are measured. Close is enough: the list keeps its place when they differ. */
import type { Row } from "../rows/row";
import { isQuiet } from "../rows/quiet";

const LINE_CHARS = 78;
const PROSE_LINE = 24;

const known = new WeakMap<Row, number>();

export function estimateHeight(row: Row | undefined): number {
  if (row === undefined) return 40;
  const found = known.get(row) ?? estimate(row);
  known.set(row, found);
  return found;
}

function estimate(row: Row): number {
  const gap = row.isTight ? 0 : 12;
  switch (row.kind) {
    case "user":
      return 12 + gap + 24 + lines(row.text, 60) * PROSE_LINE + (row.files.length + row.references.length > 0 ? 34 : 0);
    case "prose":
      return gap + lines(row.text, LINE_CHARS) * PROSE_LINE;
    case "reasoning":
      return gap + 24 + (row.isLive ? lines(row.text, LINE_CHARS) * 22 : 0);
    case "tool":
      if (isQuiet(row.call)) return gap + 28;
      return gap + (row.call.state === "failed" || row.call.name === "edit_files" ? 200 : 38);
    case "callout":
      return gap + 100;
    default:
      return gap + 28;
  }
}

function lines(text: string, width: number): number {
  let count = 0;
  let from = 0;
  // Long texts are as long as their beginning makes them look.
  const end = Math.min(text.length, 1000);
  while (from < end) {
    const next = text.indexOf("\n", from);
    const to = next < 0 || next > end ? end : next;
    count += Math.max(1, Math.ceil((to - from) / width));
    from = to + 1;
  }
  return Math.max(1, Math.round((count * text.length) / Math.max(1, end)));
}

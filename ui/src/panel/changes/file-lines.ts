/** Unchanged lines of a file between the hunks of its diff. Pure but for `loadLines`. */
import type { DiffLine, Hunk } from "@/text/diff";
import type { FileDiff } from "@/text/git-diff";
import { loadPiece } from "../files/file-content";

/** Lines that one press adds above a hunk. */
export const EXPAND_STEP = 40;
const MAX_BYTES = 1 << 20;

/** The lines of the file as it is now; null if it is no text or too large. */
export async function loadLines(chatId: string, path: string, signal: AbortSignal): Promise<readonly string[] | null> {
  let content = await loadPiece(chatId, path, null, signal);
  while (content.kind === "text" && content.loaded < content.size) {
    if (content.size > MAX_BYTES) return null;
    content = await loadPiece(chatId, path, content, signal);
  }
  if (content.kind !== "text") return null;
  return content.text.split("\n").map((line) => line.replace(/\r$/, ""));
}

const firstOf = (hunk: Hunk): { old: number; new: number } => ({
  // A hunk without lines on a side names the line before it.
  old: hunk.oldCount === 0 ? hunk.oldStart + 1 : hunk.oldStart,
  new: hunk.newCount === 0 ? hunk.newStart + 1 : hunk.newStart,
});

/** How many lines stand between a hunk and the one before it. */
export function gapBefore(hunks: readonly Hunk[], index: number): number {
  const [hunk, before] = [hunks[index], hunks[index - 1]];
  if (hunk === undefined) return 0;
  const end = before === undefined ? 0 : firstOf(before).new + before.newCount - 1;
  return Math.max(0, firstOf(hunk).new - end - 1);
}

/** Whether the diff belongs to the file as it is now. */
export function matches(file: FileDiff, lines: readonly string[]): boolean {
  return file.hunks.every((hunk) => hunk.lines.every((line) => line.newNumber === null || lines[line.newNumber - 1] === line.text));
}

/** The file with `extra` unchanged lines above each hunk, by the hunk's index. */
export function expandHunks(file: FileDiff, lines: readonly string[], extra: ReadonlyMap<number, number>): FileDiff {
  if (extra.size === 0) return file;
  const hunks = file.hunks.map((hunk, index) => {
    const count = Math.min(extra.get(index) ?? 0, gapBefore(file.hunks, index));
    return count === 0 ? hunk : withAbove(hunk, lines, count);
  });
  return { ...file, hunks };
}

function withAbove(hunk: Hunk, lines: readonly string[], count: number): Hunk {
  const first = firstOf(hunk);
  const added = Array.from({ length: count }, (_, index): DiffLine => {
    const newNumber = first.new - count + index;
    return { type: "context", text: lines[newNumber - 1] ?? "", oldNumber: first.old - count + index, newNumber, endsWithoutNewline: false };
  });
  return {
    ...hunk,
    oldStart: first.old - count,
    newStart: first.new - count,
    oldCount: hunk.oldCount + count,
    newCount: hunk.newCount + count,
    lines: [...added, ...hunk.lines],
  };
}

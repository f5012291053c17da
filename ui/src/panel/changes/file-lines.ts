/** The lines of a file's diff as they are drawn: with changed words, and paired for a split view. */
import { markWords } from "@/text/diff";
import { loadPiece } from "../files/file-content";
import type { FileDiff, Hunk, HunkLine } from "./git-diff";

export interface ViewLine extends HunkLine {
  /** Unique in the file: a side and a number. */
  readonly key: string;
  /** The width of the indent in columns, and the text after it. */
  readonly indent: number;
  readonly body: string;
  /** The range in `body` that differs from the line it replaces. */
  readonly changed: readonly [number, number] | null;
  /** The place among the lines of the old and of the new side. */
  readonly oldIndex: number;
  readonly newIndex: number;
}

export interface ViewHunk {
  readonly hunk: Hunk;
  readonly title: string;
  readonly lines: readonly ViewLine[];
}

export interface Pair {
  readonly left: ViewLine | null;
  readonly right: ViewLine | null;
}

const TAB_COLUMNS = 4;

export function viewHunks(file: FileDiff): readonly ViewHunk[] {
  let [oldIndex, newIndex] = [0, 0];
  return file.hunks.map((hunk) => {
    const marked = markWords(hunk.lines.map((line) => ({ type: line.type, text: line.text, number: null, changed: null })));
    const lines = hunk.lines.map((line, index): ViewLine => {
      const body = line.text.trimStart();
      const blank = line.text.slice(0, line.text.length - body.length);
      const view: ViewLine = {
        ...line,
        key: line.newNumber === null ? `old-${line.oldNumber ?? 0}` : `new-${line.newNumber}`,
        indent: blank.replaceAll("\t", " ".repeat(TAB_COLUMNS)).length,
        body,
        changed: shift(marked[index]?.changed ?? null, blank.length),
        oldIndex,
        newIndex,
      };
      if (line.type !== "add") oldIndex += 1;
      if (line.type !== "del") newIndex += 1;
      return view;
    });
    return { hunk, title: hunkTitle(hunk), lines };
  });
}

function hunkTitle(hunk: Hunk): string {
  const range = (start: number, count: number) => (count === 1 ? String(start) : `${start},${count}`);
  return `@@ −${range(hunk.oldStart, hunk.oldCount)} +${range(hunk.newStart, hunk.newCount)} @@ ${hunk.heading}`.trimEnd();
}

function shift(range: ViewLine["changed"], by: number): ViewLine["changed"] {
  if (range === null || range[1] <= by) return null;
  return [Math.max(0, range[0] - by), range[1] - by];
}

/** Removed lines stand beside the added ones that follow them. */
export function pairLines(lines: readonly ViewLine[]): readonly Pair[] {
  const pairs: Pair[] = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    if (line === undefined) break;
    if (line.type === "context") {
      pairs.push({ left: line, right: line });
      at += 1;
      continue;
    }
    const removed = takeWhile(lines, at, "del");
    const added = takeWhile(lines, at + removed.length, "add");
    for (let row = 0; row < Math.max(removed.length, added.length); row += 1) {
      pairs.push({ left: removed[row] ?? null, right: added[row] ?? null });
    }
    at += removed.length + added.length;
  }
  return pairs;
}

function takeWhile(lines: readonly ViewLine[], from: number, type: ViewLine["type"]): readonly ViewLine[] {
  let end = from;
  while (lines[end]?.type === type) end += 1;
  return lines.slice(from, end);
}

/** The first lines of a diff, whole hunks but for the last. */
export function cutHunks(hunks: readonly ViewHunk[], most: number): readonly ViewHunk[] {
  const cut: ViewHunk[] = [];
  let left = most;
  for (const one of hunks) {
    if (left <= 0) break;
    cut.push(one.lines.length <= left ? one : { ...one, lines: one.lines.slice(0, left) });
    left -= one.lines.length;
  }
  return cut;
}

// Puts unchanged lines of the file between the hunks of its diff. Pure but for `loadLines`.

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
  const added = Array.from({ length: count }, (_, index): HunkLine => {
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

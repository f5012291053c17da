/** Reads a unified diff into lines with numbers, and finds the words that changed in a line. */

export interface DiffLine {
  readonly type: "context" | "add" | "del" | "hunk";
  readonly text: string;
  /** In the new file; of a deleted line in the old one. Null for a hunk. */
  readonly number: number | null;
  /** The range of characters that differs from the line it replaces. */
  readonly changed: readonly [number, number] | null;
}

export interface DiffCount {
  readonly added: number;
  readonly removed: number;
}

const HUNK = /^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@(.*)$/;

export function readDiff(diff: string): readonly DiffLine[] {
  const lines: DiffLine[] = [];
  let oldNumber = 1;
  let newNumber = 1;
  let isInHunk = false;
  for (const line of diff.replace(/\n$/, "").split("\n")) {
    const hunk = HUNK.exec(line);
    if (hunk !== null) {
      oldNumber = Number(hunk[1]);
      newNumber = Number(hunk[2]);
      if (isInHunk) lines.push({ type: "hunk", text: line.replaceAll("-", "−"), number: null, changed: null });
      isInHunk = true;
      continue;
    }
    if (!isInHunk || line.startsWith("\\")) continue;
    const text = line.slice(1);
    if (line.startsWith("+")) lines.push({ type: "add", text, number: newNumber++, changed: null });
    else if (line.startsWith("-")) lines.push({ type: "del", text, number: oldNumber++, changed: null });
    else {
      lines.push({ type: "context", text, number: newNumber++, changed: null });
      oldNumber += 1;
    }
  }
  return markWords(lines);
}

export function countDiff(lines: readonly DiffLine[]): DiffCount {
  return {
    added: lines.filter((line) => line.type === "add").length,
    removed: lines.filter((line) => line.type === "del").length,
  };
}

/** A diff of two texts that are known as a whole: what one edit replaces by what. */
export function diffOfEdit(oldText: string, newText: string): readonly DiffLine[] {
  const removed = splitLines(oldText);
  const added = splitLines(newText);
  let head = 0;
  while (head < removed.length && head < added.length && removed[head] === added[head]) head += 1;
  let tail = 0;
  const most = Math.min(removed.length, added.length) - head;
  while (tail < most && removed[removed.length - 1 - tail] === added[added.length - 1 - tail]) tail += 1;
  const line =
    (type: DiffLine["type"]) =>
    (text: string): DiffLine => ({ type, text, number: null, changed: null });
  return markWords([
    ...removed.slice(0, head).map(line("context")),
    ...removed.slice(head, removed.length - tail).map(line("del")),
    ...added.slice(head, added.length - tail).map(line("add")),
    ...removed.slice(removed.length - tail).map(line("context")),
  ]);
}

function splitLines(text: string): readonly string[] {
  return text === "" ? [] : text.replace(/\n$/, "").split("\n");
}

/** Pairs each deleted line with the added line most like it, within one change. */
export function markWords(lines: readonly DiffLine[]): readonly DiffLine[] {
  const marked = [...lines];
  let index = 0;
  while (index < lines.length) {
    if (lines[index]?.type !== "del") {
      index += 1;
      continue;
    }
    const from = index;
    while (lines[index]?.type === "del") index += 1;
    const middle = index;
    while (lines[index]?.type === "add") index += 1;
    pairWords(marked, from, middle, index);
  }
  return marked;
}

const MAX_PAIRED = 40;
const MIN_ALIKE = 0.4;

function pairWords(lines: DiffLine[], from: number, middle: number, end: number): void {
  if (middle - from > MAX_PAIRED || end - middle > MAX_PAIRED) return;
  let next = middle;
  for (let index = from; index < middle; index += 1) {
    const before = lines[index];
    if (before === undefined) return;
    let best = -1;
    let bestScore = MIN_ALIKE;
    for (let other = next; other < end; other += 1) {
      const score = likeness(before.text.trim(), lines[other]?.text.trim() ?? "");
      if (score > bestScore) [best, bestScore] = [other, score];
    }
    const after = lines[best];
    if (after === undefined) continue;
    const [mine, theirs] = changedRanges(before.text, after.text);
    lines[index] = { ...before, changed: mine };
    lines[best] = { ...after, changed: theirs };
    next = best + 1;
  }
}

function likeness(one: string, two: string): number {
  const longest = Math.max(one.length, two.length);
  if (longest === 0) return 0;
  const [head, tail] = commonEnds(one, two);
  return (head + tail) / longest;
}

type Range = readonly [number, number] | null;

/** The parts that differ, widened to whole words. Indentation does not count. */
function changedRanges(before: string, after: string): readonly [Range, Range] {
  const indentBefore = before.length - before.trimStart().length;
  const indentAfter = after.length - after.trimStart().length;
  const one = before.slice(indentBefore);
  const two = after.slice(indentAfter);
  let [head, tail] = commonEnds(one, two);
  while (head > 0 && isWord(one[head - 1]) && (isWord(one[head]) || isWord(two[head]))) head -= 1;
  while (tail > 0 && isWord(one[one.length - tail]) && (isWord(one[one.length - tail - 1]) || isWord(two[two.length - tail - 1]))) tail -= 1;
  return [range(indentBefore + head, before.length - tail), range(indentAfter + head, after.length - tail)];
}

function commonEnds(one: string, two: string): [number, number] {
  const most = Math.min(one.length, two.length);
  let head = 0;
  while (head < most && one[head] === two[head]) head += 1;
  let tail = 0;
  while (tail < most - head && one[one.length - 1 - tail] === two[two.length - 1 - tail]) tail += 1;
  return [head, tail];
}

function range(from: number, to: number): Range {
  return to > from ? [from, to] : null;
}

function isWord(char: string | undefined): boolean {
  return char !== undefined && /\w/.test(char);
}

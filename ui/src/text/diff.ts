/**
 * Diffs of a file and of two texts, and their lines as they are drawn, with the words that changed. Pure.
 * Edit calls, the Changes panel, code blocks and settings all use it; `git-diff.ts` reads diffs of several files.
 */

export interface DiffLine {
  readonly type: "context" | "add" | "del";
  readonly text: string;
  readonly oldNumber: number | null;
  readonly newNumber: number | null;
  /** The last line of the file, without a line break after it. */
  readonly endsWithoutNewline: boolean;
}

export interface Hunk {
  readonly oldStart: number;
  readonly newStart: number;
  readonly oldCount: number;
  readonly newCount: number;
  readonly heading: string;
  readonly lines: readonly DiffLine[];
}

export interface LineCounts {
  readonly added: number;
  readonly removed: number;
}

export function countLines(lines: readonly DiffLine[]): LineCounts {
  return { added: lines.filter((line) => line.type === "add").length, removed: lines.filter((line) => line.type === "del").length };
}

export function sumCounts(counts: readonly LineCounts[]): LineCounts {
  return { added: counts.reduce((sum, one) => sum + one.added, 0), removed: counts.reduce((sum, one) => sum + one.removed, 0) };
}

// Reading.

/** Reads the diff of one file; anything around its hunks is left out. */
export function parseHunks(text: string): readonly Hunk[] {
  const lines = splitLines(text);
  const hunks: Hunk[] = [];
  for (let at = 0; at < lines.length; at += 1) at = readHunks(lines, at, hunks);
  return hunks;
}

export function splitLines(text: string): readonly string[] {
  return (text.endsWith("\n") ? text.slice(0, -1) : text).split("\n");
}

const HUNK = /^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@ ?(.*)$/;

/** Adds the hunks that begin at a line, and returns the line after them. */
export function readHunks(lines: readonly string[], from: number, hunks: Hunk[]): number {
  let at = from;
  for (let head = HUNK.exec(lines[at] ?? ""); head !== null; head = HUNK.exec(lines[at] ?? "")) {
    const [oldStart, newStart] = [Number(head[1]), Number(head[3])];
    const [oldCount, newCount] = [Number(head[2] ?? 1), Number(head[4] ?? 1)];
    const found = readHunkLines(lines, at + 1, { oldStart, newStart, oldCount, newCount });
    hunks.push({ oldStart, newStart, oldCount, newCount, heading: head[5] ?? "", lines: found.lines });
    at = found.end;
  }
  return at;
}

/** As many lines as the head counts, whatever they look like. */
function readHunkLines(
  all: readonly string[],
  from: number,
  head: Omit<Hunk, "heading" | "lines">,
): { readonly lines: readonly DiffLine[]; readonly end: number } {
  const lines: DiffLine[] = [];
  let [oldLeft, newLeft] = [head.oldCount, head.newCount];
  let at = from;
  for (; at < all.length; at += 1) {
    const line = all[at] ?? "";
    const sign = line.slice(0, 1);
    if (sign === "\\") {
      const last = lines.pop();
      if (last !== undefined) lines.push({ ...last, endsWithoutNewline: true });
      continue;
    }
    // An empty context line may have lost its space on the way.
    const isLine = sign === "+" || sign === "-" || sign === " " || line === "";
    if (!isLine || (oldLeft <= 0 && newLeft <= 0)) break;
    const type = sign === "+" ? "add" : sign === "-" ? "del" : "context";
    lines.push({
      type,
      text: line.slice(1).replace(/\r$/, ""),
      oldNumber: type === "add" ? null : head.oldStart + head.oldCount - oldLeft,
      newNumber: type === "del" ? null : head.newStart + head.newCount - newLeft,
      endsWithoutNewline: false,
    });
    if (type !== "add") oldLeft -= 1;
    if (type !== "del") newLeft -= 1;
  }
  return { lines, end: at };
}

/** What a line of a diff is, where nothing but the line is known: a model's diff often lacks heads, or counts wrong. */
export function looseType(line: string): DiffLine["type"] | "head" {
  if (/^(@@|diff |index |--- |\+\+\+ )/.test(line)) return "head";
  return line.startsWith("+") ? "add" : line.startsWith("-") ? "del" : "context";
}

// Comparing two texts.

/** How the lines differ that are neither in the common beginning nor in the common end. */
export type Compare = (old: readonly string[], now: readonly string[]) => readonly DiffLine["type"][];

/** The simplest: all old lines are removed, all new ones added. */
const replaceLines: Compare = (old, now) => [...old.map(() => "del" as const), ...now.map(() => "add" as const)];

export function diffTexts(before: string, after: string, compare: Compare = replaceLines): readonly DiffLine[] {
  const old = before === "" ? [] : before.split("\n");
  const now = after === "" ? [] : after.split("\n");
  const most = Math.min(old.length, now.length);
  let head = 0;
  while (head < most && old[head] === now[head]) head += 1;
  let tail = 0;
  while (tail < most - head && old[old.length - 1 - tail] === now[now.length - 1 - tail]) tail += 1;
  const types = [
    ...new Array<DiffLine["type"]>(head).fill("context"),
    ...compare(old.slice(head, old.length - tail), now.slice(head, now.length - tail)),
    ...new Array<DiffLine["type"]>(tail).fill("context"),
  ];
  let [oldAt, newAt] = [0, 0];
  return types.map((type) => {
    const text = (type === "del" ? old[oldAt] : now[newAt]) ?? "";
    if (type !== "add") oldAt += 1;
    if (type !== "del") newAt += 1;
    return { type, text, oldNumber: type === "add" ? null : oldAt, newNumber: type === "del" ? null : newAt, endsWithoutNewline: false };
  });
}

/** What an edit replaces by what. Where in the file it is, is not known. */
export function diffOfEdit(before: string, after: string): readonly DiffLine[] {
  return diffTexts(before.replace(/\n$/, ""), after.replace(/\n$/, "")).map((line) => ({ ...line, oldNumber: null, newNumber: null }));
}

// Lines as they are drawn.

export interface DrawnLine extends DiffLine {
  /** Unique in the file: a side and a number. */
  readonly key: string;
  /** The width of the indent in columns, and the text after it. 0 if the text has its indent. */
  readonly indent: number;
  readonly body: string;
  /** The range in `body` that differs from the line it replaces. */
  readonly changed: CharRange | null;
  /** The place among the lines of the old and of the new side. */
  readonly oldIndex: number;
  readonly newIndex: number;
}

/** A hunk, or lines of a text whose place in the file is not known: then without a title. */
export interface TitledHunk {
  readonly title: string;
  readonly lines: readonly DiffLine[];
}

interface DrawnHunk {
  readonly title: string;
  readonly lines: readonly DrawnLine[];
}

const TAB_COLUMNS = 4;

/** `isHanging`: a wrapped line hangs in from its indent, which is not part of its text. */
export function drawHunks(hunks: readonly TitledHunk[], isHanging: boolean): readonly DrawnHunk[] {
  let [oldIndex, newIndex] = [0, 0];
  return hunks.map(({ title, lines }, place) => {
    const changes = changedWords(lines);
    const drawn = lines.map((line, index): DrawnLine => {
      const body = isHanging ? line.text.trimStart() : line.text;
      const blank = line.text.slice(0, line.text.length - body.length);
      const view: DrawnLine = {
        ...line,
        key: line.newNumber !== null ? `new-${line.newNumber}` : line.oldNumber !== null ? `old-${line.oldNumber}` : `${place}-${index}`,
        indent: blank.replaceAll("\t", " ".repeat(TAB_COLUMNS)).length,
        body,
        changed: shift(changes[index] ?? null, blank.length),
        oldIndex,
        newIndex,
      };
      if (line.type !== "add") oldIndex += 1;
      if (line.type !== "del") newIndex += 1;
      return view;
    });
    return { title, lines: drawn };
  });
}

export function titledHunk(hunk: Hunk): TitledHunk {
  const range = (start: number, count: number) => (count === 1 ? String(start) : `${start},${count}`);
  const title = `@@ −${range(hunk.oldStart, hunk.oldCount)} +${range(hunk.newStart, hunk.newCount)} @@ ${hunk.heading}`.trimEnd();
  return { title, lines: hunk.lines };
}

function shift(range: CharRange | null, by: number): CharRange | null {
  if (range === null || range[1] <= by) return null;
  return [Math.max(0, range[0] - by), range[1] - by];
}

/** The first lines of a diff, whole hunks but for the last. */
export function cutHunks(hunks: readonly DrawnHunk[], most: number): readonly DrawnHunk[] {
  const cut: DrawnHunk[] = [];
  let left = most;
  for (const one of hunks) {
    if (left <= 0) break;
    cut.push(one.lines.length <= left ? one : { ...one, lines: one.lines.slice(0, left) });
    left -= one.lines.length;
  }
  return cut;
}

// The words that changed in a line.

type CharRange = readonly [from: number, to: number];

/** For each line the range that differs from the line it replaces. A removed line is paired with the added line most like it. */
function changedWords(lines: readonly DiffLine[]): readonly (CharRange | null)[] {
  const changes = lines.map((): CharRange | null => null);
  let index = 0;
  while (index < lines.length) {
    const from = index;
    while (lines[index]?.type === "del") index += 1;
    const middle = index;
    while (lines[index]?.type === "add") index += 1;
    if (middle > from) pairWords(lines, changes, from, middle, index);
    else if (index === from) index += 1;
  }
  return changes;
}

const MAX_PAIRED = 40;
const MIN_ALIKE = 0.4;

function pairWords(lines: readonly DiffLine[], changes: (CharRange | null)[], from: number, middle: number, end: number): void {
  if (middle - from > MAX_PAIRED || end - middle > MAX_PAIRED) return;
  let next = middle;
  for (let index = from; index < middle; index += 1) {
    const before = lines[index]?.text ?? "";
    let best = -1;
    let bestScore = MIN_ALIKE;
    for (let other = next; other < end; other += 1) {
      const score = likeness(before.trim(), lines[other]?.text.trim() ?? "");
      if (score > bestScore) [best, bestScore] = [other, score];
    }
    const after = lines[best];
    if (after === undefined) continue;
    [changes[index], changes[best]] = changedRanges(before, after.text);
    next = best + 1;
  }
}

function likeness(one: string, two: string): number {
  const longest = Math.max(one.length, two.length);
  if (longest === 0) return 0;
  const [head, tail] = commonEnds(one, two);
  return (head + tail) / longest;
}

/** The parts that differ, widened to whole words. Indentation does not count. */
function changedRanges(before: string, after: string): [CharRange | null, CharRange | null] {
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

function range(from: number, to: number): CharRange | null {
  return to > from ? [from, to] : null;
}

function isWord(char: string | undefined): boolean {
  return char !== undefined && /\w/.test(char);
}

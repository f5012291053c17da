/**
 * Diffs: of git, of one file, of two texts; and their lines as they are drawn, with the words that changed.
 * Pure. Edit calls, the Changes panel, code blocks and settings all use it.
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

export interface FileDiff {
  /** Its name now; of a deleted file the name it had. */
  readonly path: string;
  /** Its former name, if it has another one now. */
  readonly oldPath: string | null;
  readonly kind: "added" | "deleted" | "changed" | "renamed" | "copied" | "conflict";
  readonly isBinary: boolean;
  readonly modes: readonly [string, string] | null;
  readonly added: number;
  readonly removed: number;
  readonly hunks: readonly Hunk[];
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

/** Reads the output of `git diff`. Text that is not a diff becomes `note`. */
export function parseGitDiff(text: string): { readonly files: readonly FileDiff[]; readonly note: string } {
  return new DiffReader(text).read();
}

/** Reads the diff of one file; anything around its hunks is left out. */
export function parseHunks(text: string): readonly Hunk[] {
  return new DiffReader(text).readHunks();
}

/** What a line of a diff is, where nothing but the line is known: a model's diff often lacks heads, or counts wrong. */
export function looseType(line: string): DiffLine["type"] | "head" {
  if (/^(@@|diff |index |--- |\+\+\+ )/.test(line)) return "head";
  return line.startsWith("+") ? "add" : line.startsWith("-") ? "del" : "context";
}

interface FileDraft {
  oldName: string | null;
  newName: string | null;
  kind: FileDiff["kind"];
  isBinary: boolean;
  oldMode: string | null;
  newMode: string | null;
  hunks: Hunk[];
}

const HUNK = /^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@ ?(.*)$/;

class DiffReader {
  private readonly lines: readonly string[];
  private at = 0;

  constructor(text: string) {
    this.lines = (text.endsWith("\n") ? text.slice(0, -1) : text).split("\n");
  }

  read(): { readonly files: readonly FileDiff[]; readonly note: string } {
    const files: FileDiff[] = [];
    const notes: string[] = [];
    while (this.at < this.lines.length) {
      const line = this.line();
      if (line.startsWith("diff --git ")) files.push(finish(this.gitFile(line.slice("diff --git ".length))));
      else if (/^diff --(cc|combined) /.test(line)) files.push(finish(this.conflict(line)));
      else if (line.startsWith("--- ") && this.line(1).startsWith("+++ ")) files.push(finish(this.plainFile()));
      else {
        notes.push(line);
        this.at += 1;
      }
    }
    return { files, note: files.length === 0 ? notes.join("\n").trim() : "" };
  }

  readHunks(): readonly Hunk[] {
    const draft = emptyDraft("", "");
    for (; this.at < this.lines.length; this.at += 1) this.body(draft);
    return draft.hunks;
  }

  private line(ahead = 0): string {
    return this.lines[this.at + ahead] ?? "";
  }

  private gitFile(names: string): FileDraft {
    const [oldName, newName] = splitNames(names);
    const draft = emptyDraft(oldName, newName);
    this.at += 1;
    while (this.at < this.lines.length && this.header(draft)) this.at += 1;
    this.body(draft);
    return draft;
  }

  /** One line between "diff --git" and the first hunk. False: it belongs to what follows. */
  private header(draft: FileDraft): boolean {
    const line = this.line();
    const value = (start: string) => (line.startsWith(start) ? line.slice(start.length) : null);
    if (line.startsWith("diff --") || line.startsWith("@@ ")) return false;
    draft.oldMode = value("old mode ") ?? value("deleted file mode ") ?? draft.oldMode;
    draft.newMode = value("new mode ") ?? value("new file mode ") ?? draft.newMode;
    if (line.startsWith("new file mode ")) draft.kind = "added";
    if (line.startsWith("deleted file mode ")) draft.kind = "deleted";
    for (const kind of ["rename", "copy"] as const) {
      const [from, to] = [value(`${kind} from `), value(`${kind} to `)];
      if (from !== null) draft.oldName = unquoteName(from);
      if (to !== null) draft.newName = unquoteName(to);
      if (to !== null) draft.kind = kind === "rename" ? "renamed" : "copied";
    }
    if (line.startsWith("--- ")) draft.oldName = sideName(line) ?? draft.oldName;
    if (line.startsWith("+++ ")) draft.newName = sideName(line) ?? draft.newName;
    if (/^Binary files .* differ$/.test(line) || line === "GIT binary patch") draft.isBinary = true;
    return true;
  }

  private plainFile(): FileDraft {
    const [from, to] = [sideName(this.line()), sideName(this.line(1))];
    const draft = emptyDraft(from ?? to ?? "", to ?? from ?? "");
    if (from === null) draft.kind = "added";
    else if (to === null) draft.kind = "deleted";
    this.at += 2;
    this.body(draft);
    return draft;
  }

  /** A merge in progress: its diff has a column for each parent, which is not shown. */
  private conflict(first: string): FileDraft {
    const name = unquoteName(first.replace(/^diff --\w+ /, ""));
    this.at += 1;
    while (this.at < this.lines.length && !this.line().startsWith("diff --")) this.at += 1;
    return { ...emptyDraft(name, name), kind: "conflict" };
  }

  private body(draft: FileDraft): void {
    for (let found = HUNK.exec(this.line()); found !== null; found = HUNK.exec(this.line())) {
      this.at += 1;
      draft.hunks.push(this.hunk(found));
    }
  }

  /** As many lines as its head counts, whatever they look like. */
  private hunk(head: RegExpExecArray): Hunk {
    const [oldStart, newStart] = [Number(head[1]), Number(head[3])];
    const [oldCount, newCount] = [Number(head[2] ?? 1), Number(head[4] ?? 1)];
    const lines: DiffLine[] = [];
    let [oldLeft, newLeft] = [oldCount, newCount];
    while (this.at < this.lines.length && (oldLeft > 0 || newLeft > 0 || this.line().startsWith("\\"))) {
      const line = this.line();
      const sign = line.slice(0, 1);
      if (sign === "\\") {
        const last = lines.pop();
        if (last !== undefined) lines.push({ ...last, endsWithoutNewline: true });
        this.at += 1;
        continue;
      }
      // An empty context line may have lost its space on the way.
      if (sign !== "+" && sign !== "-" && sign !== " " && line !== "") break;
      const type = sign === "+" ? "add" : sign === "-" ? "del" : "context";
      lines.push({
        type,
        text: line.slice(1).replace(/\r$/, ""),
        oldNumber: type === "add" ? null : oldStart + oldCount - oldLeft,
        newNumber: type === "del" ? null : newStart + newCount - newLeft,
        endsWithoutNewline: false,
      });
      if (type !== "add") oldLeft -= 1;
      if (type !== "del") newLeft -= 1;
      this.at += 1;
    }
    return { oldStart, newStart, oldCount, newCount, heading: head[5] ?? "", lines };
  }
}

function emptyDraft(oldName: string, newName: string): FileDraft {
  return { oldName, newName, kind: "changed", isBinary: false, oldMode: null, newMode: null, hunks: [] };
}

function finish(draft: FileDraft): FileDiff {
  const path = (draft.kind === "deleted" ? draft.oldName : draft.newName) ?? draft.oldName ?? "";
  const oldPath = draft.kind === "renamed" || draft.kind === "copied" ? draft.oldName : null;
  const { oldMode, newMode } = draft;
  return {
    path,
    oldPath: oldPath === path ? null : oldPath,
    kind: draft.kind,
    isBinary: draft.isBinary,
    modes: oldMode !== null && newMode !== null && oldMode !== newMode ? [oldMode, newMode] : null,
    ...countLines(draft.hunks.flatMap((hunk) => hunk.lines)),
    hunks: draft.hunks,
  };
}

/** The name in a line "--- a/x" or "+++ b/x"; null for /dev/null. A tab ends a name with spaces. */
function sideName(line: string): string | null {
  const name = line.slice(4).replace(/\t.*$/, "");
  if (name === "/dev/null") return null;
  return unquoteName(name).replace(/^[ab]\//, "");
}

/** "a/x b/x". Names with spaces are not quoted: then both must be the same, or a later line tells them. */
function splitNames(names: string): [string, string] {
  const quoted = /^("(?:[^"\\]|\\.)*"|\S+) ("(?:[^"\\]|\\.)*"|\S+)$/.exec(names);
  if (quoted !== null) {
    const [from, to] = [unquoteName(quoted[1] ?? ""), unquoteName(quoted[2] ?? "")];
    return [from.replace(/^a\//, ""), to.replace(/^b\//, "")];
  }
  const half = (names.length - 1) / 2;
  const [from, to] = [names.slice(0, half), names.slice(half + 1)];
  if (from.slice(2) === to.slice(2)) return [from.slice(2), to.slice(2)];
  return [names, names];
}

const ESCAPES: Readonly<Record<string, number>> = { a: 7, b: 8, t: 9, n: 10, v: 11, f: 12, r: 13, '"': 34, "\\": 92 };

/** A name as git prints it: in quotes, with bytes above ASCII as octal numbers, if it has unusual characters. */
export function unquoteName(name: string): string {
  if (name.length < 2 || !name.startsWith('"') || !name.endsWith('"')) return name;
  const bytes: number[] = [];
  const encoder = new TextEncoder();
  for (const [token] of name.slice(1, -1).matchAll(/\\[0-7]{1,3}|\\.|[^\\]+/gsu)) {
    if (/^\\[0-7]/.test(token)) bytes.push(Number.parseInt(token.slice(1), 8) & 0xff);
    else if (token.startsWith("\\")) bytes.push(ESCAPES[token.slice(1)] ?? token.charCodeAt(1));
    else bytes.push(...encoder.encode(token));
  }
  return new TextDecoder().decode(new Uint8Array(bytes));
}

// Comparing two texts.

/** Larger changes are shown as removed and added whole: the table grows with the product of both sides. */
const MAX_CELLS = 1_000_000;

/** The lines that two texts have in common, and those they do not (longest common subsequence). */
export function diffTexts(before: string, after: string): readonly DiffLine[] {
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

function compare(old: readonly string[], now: readonly string[]): readonly DiffLine["type"][] {
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
}

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

export interface DrawnHunk {
  readonly title: string;
  readonly lines: readonly DrawnLine[];
}

export interface Pair {
  readonly left: DrawnLine | null;
  readonly right: DrawnLine | null;
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

/** Removed lines stand beside the added ones that follow them. */
export function pairLines(lines: readonly DrawnLine[]): readonly Pair[] {
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

function takeWhile(lines: readonly DrawnLine[], from: number, type: DrawnLine["type"]): readonly DrawnLine[] {
  let end = from;
  while (lines[end]?.type === type) end += 1;
  return lines.slice(from, end);
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

export type CharRange = readonly [from: number, to: number];

/** For each line the range that differs from the line it replaces. A removed line is paired with the added line most like it. */
export function changedWords(lines: readonly DiffLine[]): readonly (CharRange | null)[] {
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

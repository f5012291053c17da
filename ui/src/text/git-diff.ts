/** Reads the output of `git diff`: its files, with their names, kinds and hunks. Pure. */
import { countLines, type Hunk, readHunks, splitLines } from "./diff";

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

interface GitDiff {
  readonly files: readonly FileDiff[];
  readonly note: string;
}

/** Text that is not a diff becomes `note`. */
export function parseGitDiff(text: string): GitDiff {
  return new DiffReader(text).read();
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

class DiffReader {
  private readonly lines: readonly string[];
  private at = 0;

  constructor(text: string) {
    this.lines = splitLines(text);
  }

  read(): GitDiff {
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

  private line(ahead = 0): string {
    return this.lines[this.at + ahead] ?? "";
  }

  private gitFile(names: string): FileDraft {
    const [oldName, newName] = splitNames(names);
    const draft = emptyDraft(oldName, newName);
    this.at += 1;
    while (this.at < this.lines.length && this.header(draft)) this.at += 1;
    this.at = readHunks(this.lines, this.at, draft.hunks);
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
    this.at = readHunks(this.lines, this.at, draft.hunks);
    return draft;
  }

  /** A merge in progress: its diff has a column for each parent, which is not shown. */
  private conflict(first: string): FileDraft {
    const name = unquoteName(first.replace(/^diff --\w+ /, ""));
    this.at += 1;
    while (this.at < this.lines.length && !this.line().startsWith("diff --")) this.at += 1;
    return { ...emptyDraft(name, name), kind: "conflict" };
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

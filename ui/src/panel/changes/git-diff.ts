/** Reads the output of `git diff`: files, hunks and lines. Pure. Text that is no diff becomes `note`. */
import { unquoteName } from "./git-names";

export interface HunkLine {
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
  readonly lines: readonly HunkLine[];
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

export interface GitDiff {
  readonly files: readonly FileDiff[];
  readonly note: string;
}

export function parseGitDiff(text: string): GitDiff {
  return new DiffReader(text).read();
}

interface Draft {
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

  private gitFile(names: string): Draft {
    const [oldName, newName] = splitNames(names);
    const draft = emptyDraft(oldName, newName);
    this.at += 1;
    while (this.at < this.lines.length && this.header(draft)) this.at += 1;
    this.body(draft);
    return draft;
  }

  /** One line between "diff --git" and the first hunk. False: it belongs to what follows. */
  private header(draft: Draft): boolean {
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

  private plainFile(): Draft {
    const [from, to] = [sideName(this.line()), sideName(this.line(1))];
    const draft = emptyDraft(from ?? to ?? "", to ?? from ?? "");
    if (from === null) draft.kind = "added";
    else if (to === null) draft.kind = "deleted";
    this.at += 2;
    this.body(draft);
    return draft;
  }

  /** A merge in progress: its diff has a column for each parent, which is not shown. */
  private conflict(first: string): Draft {
    const name = unquoteName(first.replace(/^diff --\w+ /, ""));
    this.at += 1;
    while (this.at < this.lines.length && !this.line().startsWith("diff --")) this.at += 1;
    return { ...emptyDraft(name, name), kind: "conflict" };
  }

  private body(draft: Draft): void {
    for (let found = HUNK.exec(this.line()); found !== null; found = HUNK.exec(this.line())) {
      this.at += 1;
      draft.hunks.push(this.hunk(found));
    }
  }

  /** As many lines as its head counts, whatever they look like. */
  private hunk(head: RegExpExecArray): Hunk {
    const [oldStart, newStart] = [Number(head[1]), Number(head[3])];
    const [oldCount, newCount] = [Number(head[2] ?? 1), Number(head[4] ?? 1)];
    const lines: HunkLine[] = [];
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

function emptyDraft(oldName: string, newName: string): Draft {
  return { oldName, newName, kind: "changed", isBinary: false, oldMode: null, newMode: null, hunks: [] };
}

function finish(draft: Draft): FileDiff {
  const path = (draft.kind === "deleted" ? draft.oldName : draft.newName) ?? draft.oldName ?? "";
  const oldPath = draft.kind === "renamed" || draft.kind === "copied" ? draft.oldName : null;
  const { oldMode, newMode } = draft;
  const lines = draft.hunks.flatMap((hunk) => hunk.lines);
  return {
    path,
    oldPath: oldPath === path ? null : oldPath,
    kind: draft.kind,
    isBinary: draft.isBinary,
    modes: oldMode !== null && newMode !== null && oldMode !== newMode ? [oldMode, newMode] : null,
    added: lines.filter((line) => line.type === "add").length,
    removed: lines.filter((line) => line.type === "del").length,
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

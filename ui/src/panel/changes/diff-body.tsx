/** The lines of a file's diff, side by side or one below the other; a press on a line opens a comment. */
import { MessageSquarePlus, UnfoldVertical } from "lucide-react";
import { Fragment, type KeyboardEvent, type ReactNode, useMemo, useRef, useState } from "react";
import { Button, classes, errorWords, Icon } from "@/components";
import { toast } from "@/platform/toasts";
import { plural } from "@/platform/words";
import { cutHunks, drawHunks, type DrawnLine, titledHunk } from "@/text/diff";
import type { FileDiff } from "@/text/git-diff";
import { MoreLines, unifiedCells, unifiedClass, useLineNodes } from "@/text/diff-view";
import { EXPAND_STEP, expandHunks, gapBefore, loadLines, matches } from "./file-lines";
import { pairLines, splitCells } from "./side-by-side";

const FIRST = 400;
const STEP = 2000;

interface DiffBodyProps {
  readonly chatId: string;
  readonly root: string;
  readonly file: FileDiff;
  readonly isSplit: boolean;
  readonly onComment: (line: DrawnLine, text: string) => void;
}

export function DiffBody({ chatId, root, file: given, isSplit, onComment }: DiffBodyProps) {
  const { file, hiddenAbove, expand } = useExpanded(chatId, `${root}/${given.path}`, given);
  const [most, setMost] = useState(FIRST);
  const [active, setActive] = useState<string | null>(null);
  const [noted, setNoted] = useState<string | null>(null);
  const body = useRef<HTMLDivElement>(null);
  const all = useMemo(() => drawHunks(file.hunks.map(titledHunk), true), [file]);
  const hunks = useMemo(() => cutHunks(all, most), [all, most]);
  const total = all.reduce((sum, one) => sum + one.lines.length, 0);
  const lines = useMemo(() => hunks.flatMap((one) => one.lines), [hunks]);
  const nodes = useLineNodes(lines, file.path);

  const focusLine = (key: string) => {
    setActive(key);
    requestAnimationFrame(() => body.current?.querySelector<HTMLElement>(`[data-line="${key}"] .diff-comment-button`)?.focus());
  };
  const press = (event: KeyboardEvent<HTMLDivElement>) => {
    const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    if (step === 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const rows = [...(body.current?.querySelectorAll<HTMLElement>("[data-line]") ?? [])].map((row) => row.dataset.line ?? "");
    const at = active === null ? -1 : rows.indexOf(active);
    const next = rows[Math.min(rows.length - 1, Math.max(0, at + step))];
    if (next !== undefined) focusLine(next);
  };
  const row = (line: DrawnLine, content: ReactNode, className: string) => (
    <Fragment key={line.key}>
      <div className={classes(className, active === line.key && "is-active")} data-line={line.key} onClick={() => setActive(line.key)}>
        {content}
        <button type="button" className="diff-comment-button" aria-label={`Comment on ${placeOf(line)}`} onClick={() => setNoted(line.key)}>
          <Icon of={MessageSquarePlus} size="sm" />
        </button>
      </div>
      {noted === line.key && (
        <LineNote
          place={placeOf(line)}
          onCancel={() => {
            setNoted(null);
            focusLine(line.key);
          }}
          onAdd={(text) => {
            setNoted(null);
            onComment(line, text);
          }}
        />
      )}
    </Fragment>
  );

  return (
    <div
      ref={body}
      className={isSplit ? "diff-split" : "diff-unified"}
      tabIndex={0}
      role="group"
      aria-label={`Changes in ${file.path}`}
      aria-description="Arrow keys move by line; a line can be commented."
      onKeyDown={press}
    >
      {hunks.map((one, index) => (
        <Fragment key={index}>
          <HunkHead title={one.title} hidden={hiddenAbove(index)} onExpand={() => expand(index)} />
          {isSplit
            ? pairLines(one.lines).map(({ left, right }) => {
                const line = right ?? left;
                return line === null ? null : row(line, splitCells(left, right, nodes), "diff-pair");
              })
            : one.lines.map((line) => row(line, unifiedCells(line, nodes), unifiedClass(line)))}
        </Fragment>
      ))}
      <MoreLines total={total} most={most} step={STEP} onMore={setMost} />
    </div>
  );
}

/** Where a hunk stands, and a button for the unchanged lines above it. Nothing if none are left out. */
function HunkHead({ title, hidden, onExpand }: { title: string; hidden: number; onExpand: () => void }) {
  if (hidden === 0) return <div className="diff-hunk">{title}</div>;
  const lines = plural(hidden, "unchanged line");
  return (
    <div className="diff-hunk is-expandable">
      <button type="button" aria-label={`Show more of ${lines} above`} title={lines} onClick={onExpand}>
        <Icon of={UnfoldVertical} size="sm" />
      </button>
      <span className="ui-ellipsis">{title}</span>
    </div>
  );
}

function placeOf(line: DrawnLine): string {
  return line.newNumber === null ? `removed line ${line.oldNumber ?? 0}` : `Line ${line.newNumber}`;
}

interface LineNoteProps {
  readonly place: string;
  readonly onAdd: (text: string) => void;
  readonly onCancel: () => void;
}

/** A comment on a line. It goes into the message that is being written, and nowhere else. */
export function LineNote({ place, onAdd, onCancel }: LineNoteProps) {
  const [text, setText] = useState("");
  const add = () => onAdd(text.trim());
  const press = (event: KeyboardEvent) => {
    event.stopPropagation();
    if (event.key === "Escape") {
      event.preventDefault();
      onCancel();
    } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      add();
    }
  };
  return (
    <div className="changes-note-row">
      <div className="changes-note">
        <textarea
          autoFocus
          rows={2}
          aria-label={`Comment on ${place}`}
          placeholder="What should change here?"
          value={text}
          onChange={(event) => setText(event.target.value)}
          onKeyDown={press}
        />
        <footer>
          <span className="tone-subtle ui-grow">{place}. Goes into your next message.</span>
          <Button size="xs" variant="quiet" onClick={onCancel}>
            Cancel
          </Button>
          <Button size="xs" variant="primary" onClick={add}>
            Add to message
          </Button>
        </footer>
      </div>
    </div>
  );
}

const TIMEOUT_MS = 30_000;

interface Expanded {
  readonly file: FileDiff;
  /** Lines that could be shown above a hunk. */
  readonly hiddenAbove: (index: number) => number;
  readonly expand: (index: number) => void;
}

/** The diff with unchanged lines around its hunks, which are loaded with the first press. */
function useExpanded(chatId: string, path: string, file: FileDiff): Expanded {
  const [loaded, setLoaded] = useState<{ of: FileDiff; lines: readonly string[] } | null>(null);
  const [extra, setExtra] = useState<ReadonlyMap<number, number>>(new Map());
  const lines = loaded?.of === file ? loaded.lines : null;
  const shown = useMemo(() => (lines === null ? file : expandHunks(file, lines, extra)), [file, lines, extra]);
  const expand = (index: number) => {
    const more = (known: ReadonlyMap<number, number>) => new Map(known).set(index, (known.get(index) ?? 0) + EXPAND_STEP);
    if (lines !== null) {
      setExtra(more);
      return;
    }
    loadLines(chatId, path, AbortSignal.timeout(TIMEOUT_MS)).then(
      (found) => {
        if (found === null) toast("The file is too large to show more of it.");
        else if (!matches(file, found)) toast("The file has changed since. Refresh the changes.");
        else {
          setLoaded({ of: file, lines: found });
          setExtra(more(new Map()));
        }
      },
      (error: unknown) => toast({ text: errorWords(error).text, tone: "danger" }),
    );
  };
  const canExpand = file.kind !== "added" && file.kind !== "deleted";
  return { file: shown, hiddenAbove: (index) => (canExpand ? gapBefore(shown.hunks, index) : 0), expand };
}

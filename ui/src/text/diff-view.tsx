/** How lines of a diff look, wherever they are shown: one below the other or side by side, with the colours of their language. */
import { type CSSProperties, type ReactNode, useMemo, useState } from "react";
import { languageOf, useHighlightedLines } from "./code";
import { cutHunks, drawHunks, type DrawnLine, type TitledHunk } from "./diff";

export const SIGNS: Readonly<Record<DrawnLine["type"], string>> = { add: "+", del: "−", context: " " };
const FIRST = 60;
const STEP = 500;

interface DiffLinesProps {
  readonly hunks: readonly TitledHunk[];
  /** Its ending says which language the lines have. */
  readonly path: string;
}

/** The lines of a file's diff, one below the other. A long diff is shown in steps. */
export function DiffLines({ hunks, path }: DiffLinesProps) {
  const [most, setMost] = useState(FIRST);
  const drawn = useMemo(() => drawHunks(hunks, false), [hunks]);
  const shown = useMemo(() => cutHunks(drawn, most), [drawn, most]);
  const nodes = useLineNodes(
    useMemo(() => shown.flatMap((hunk) => hunk.lines), [shown]),
    path,
  );
  return (
    <div className="diff-box" tabIndex={0} role="group" aria-label={`Changes in ${path}`}>
      {shown.map((hunk, index) => (
        <div key={index}>
          {index > 0 && hunk.title !== "" && <div className="diff-hunk">{hunk.title}</div>}
          {hunk.lines.map((line) => (
            <div key={line.key} className={unifiedClass(line)}>
              {unifiedCells(line, nodes)}
            </div>
          ))}
        </div>
      ))}
      <MoreLines total={drawn.reduce((sum, hunk) => sum + hunk.lines.length, 0)} most={most} step={STEP} onMore={setMost} />
    </div>
  );
}

interface MoreLinesProps {
  readonly total: number;
  /** How many are shown. */
  readonly most: number;
  readonly step: number;
  readonly onMore: (most: number) => void;
}

export function MoreLines({ total, most, step, onMore }: MoreLinesProps) {
  const hidden = total - most;
  if (hidden <= 0) return null;
  return (
    <button type="button" className="ui-more-lines" onClick={() => onMore(most + step)}>
      {hidden <= step ? `Show all ${total.toLocaleString("en")} lines` : `Show ${step.toLocaleString("en")} of ${hidden.toLocaleString("en")} more lines`}
    </button>
  );
}

export type LineNodes = (line: DrawnLine, side: "old" | "new") => ReactNode;

/** Coloured text by side: a language is read as the file has it, not as the diff mixes it. */
export function useLineNodes(lines: readonly DrawnLine[], path: string): LineNodes {
  const language = languageOf(path);
  const oldLines = useMemo(() => sideOf(lines, "add"), [lines]);
  const newLines = useMemo(() => sideOf(lines, "del"), [lines]);
  const oldNodes = useHighlightedLines(oldLines, language);
  const newNodes = useHighlightedLines(newLines, language);
  return (line, side) => (side === "old" ? oldNodes?.[line.oldIndex] : newNodes?.[line.newIndex]) ?? plainNode(line);
}

function sideOf(lines: readonly DrawnLine[], without: DrawnLine["type"]): readonly { readonly text: string; readonly changed: DrawnLine["changed"] }[] {
  return lines.filter((line) => line.type !== without).map((line) => ({ text: line.body, changed: line.changed }));
}

function plainNode(line: DrawnLine): ReactNode {
  if (line.changed === null) return line.body;
  const [from, to] = line.changed;
  return (
    <>
      {line.body.slice(0, from)}
      <mark>{line.body.slice(from, to)}</mark>
      {line.body.slice(to)}
    </>
  );
}

export function unifiedClass({ type }: DrawnLine): string {
  return type === "context" ? "diff-line" : `diff-line is-${type}`;
}

export function unifiedCells(line: DrawnLine, nodes: LineNodes): ReactNode {
  return (
    <>
      <span>{line.newNumber ?? line.oldNumber}</span>
      <span>{SIGNS[line.type]}</span>
      <code style={indentStyle(line)}>
        {nodes(line, line.type === "del" ? "old" : "new")}
        {endMark(line)}
      </code>
    </>
  );
}

export function indentStyle(line: DrawnLine): CSSProperties {
  return { "--in": Math.min(line.indent, 40) } as CSSProperties;
}

export function endMark(line: DrawnLine): ReactNode {
  return line.endsWithoutNewline && <span className="diff-no-newline">no line break at the end</span>;
}

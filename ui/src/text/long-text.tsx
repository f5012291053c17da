/** Text of any length in few nodes: its beginning and end, and the rest in steps. */
import { useState, type ReactNode } from "react";

const STEP = 2000;
const FULL_LINES = 400;
const EDGE_LINES = 150;

const LINE_CHARS = 5000;

/** One line can be as long as a file. */
function clipLine(line: string): string {
  if (line.length <= LINE_CHARS) return line;
  return `${line.slice(0, LINE_CHARS)}… (${(line.length - LINE_CHARS).toLocaleString("en")} more characters)`;
}

export interface LongTextProps {
  readonly text: string;
  /** Show only this many lines of the end, until asked for more. */
  readonly tail?: number;
  readonly render?: (text: string) => ReactNode;
}

export function LongText({ text, tail, render = (shown) => shown }: LongTextProps) {
  const [extra, setExtra] = useState(0);
  const lines = text.split("\n").map(clipLine);
  const head = tail === undefined ? EDGE_LINES : 0;
  const end = tail ?? EDGE_LINES;
  const limit = tail ?? FULL_LINES;
  if (lines.length <= Math.max(limit, head + end) + extra) return render(lines.join("\n"));
  const hidden = lines.length - head - end - extra;
  const first = lines.slice(0, head).join("\n");
  const rest = lines.slice(lines.length - end - extra).join("\n");
  const count = Math.min(hidden, STEP);
  return (
    <>
      {head > 0 && render(`${first}\n`)}
      <button type="button" className="ui-more-lines" onClick={() => setExtra(extra + STEP)}>
        {count === hidden
          ? `Show all ${lines.length.toLocaleString("en")} lines`
          : `Show ${count.toLocaleString("en")} of ${hidden.toLocaleString("en")} hidden lines`}
      </button>
      {render(rest)}
    </>
  );
}

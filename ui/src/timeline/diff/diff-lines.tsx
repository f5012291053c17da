/** Lines of a diff, one below the other. Long diffs are shown in steps. */
import { type ReactNode, useState } from "react";
import { languageOf } from "@/text/file-language";
import type { DiffLine } from "@/text/unified-diff";
import { useHighlightedLines } from "@/text/use-highlighted";

const FIRST = 60;
const STEP = 500;

export function DiffLines({ lines, path }: { readonly lines: readonly DiffLine[]; readonly path: string }) {
  const [count, setCount] = useState(FIRST);
  const shown = lines.slice(0, count);
  const coloured = useHighlightedLines(shown, languageOf(path));
  const hidden = lines.length - shown.length;
  return (
    <div className="diff-box" tabIndex={0} role="group" aria-label={`Changes in ${path}`}>
      {shown.map((line, index) =>
        line.type === "hunk" ? (
          <div key={index} className="diff-hunk">
            {line.text}
          </div>
        ) : (
          <div key={index} className={line.type === "context" ? "diff-line" : `diff-line is-${line.type}`}>
            <span>{line.number}</span>
            <span>{line.type === "add" ? "+" : line.type === "del" ? "−" : " "}</span>
            <code>{coloured?.[index] ?? plainLine(line)}</code>
          </div>
        ),
      )}
      {hidden > 0 && (
        <button type="button" className="ui-more-lines" onClick={() => setCount(count + STEP)}>
          {hidden <= STEP ? `Show all ${lines.length.toLocaleString("en")} lines` : `Show ${STEP} of ${hidden.toLocaleString("en")} more lines`}
        </button>
      )}
    </div>
  );
}

function plainLine(line: DiffLine): ReactNode {
  if (line.changed === null) return line.text;
  const [from, to] = line.changed;
  return (
    <>
      {line.text.slice(0, from)}
      <mark>{line.text.slice(from, to)}</mark>
      {line.text.slice(to)}
    </>
  );
}

/** Old and new lines of a diff side by side. */
import type { ReactNode } from "react";
import type { DrawnLine } from "@/text/diff";
import { endMark, indentStyle, type LineNodes, SIGNS } from "@/text/diff-view";

interface Pair {
  readonly left: DrawnLine | null;
  readonly right: DrawnLine | null;
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

export function splitCells(left: DrawnLine | null, right: DrawnLine | null, nodes: LineNodes): ReactNode {
  return (
    <>
      {left === null ? ABSENT : splitSide(left, left.oldNumber, nodes(left, "old"))}
      {right === null ? ABSENT : splitSide(right, right.newNumber, nodes(right, "new"))}
    </>
  );
}

function splitSide(line: DrawnLine, number: number | null, node: ReactNode): ReactNode {
  const className = line.type === "context" ? "" : `is-${line.type}`;
  return (
    <>
      <span className={className}>{number}</span>
      <code className={className} style={indentStyle(line)} data-s={SIGNS[line.type]}>
        {node}
        {endMark(line)}
      </code>
    </>
  );
}

const ABSENT = (
  <>
    <span className="is-absent" />
    <code className="is-absent" data-s="" />
  </>
);

/** A mark for each prompt of a long chat at the edge of its messages; pressed, the prompts as a list that leads to each of them. */
import { useMemo, useState } from "react";
import { Button, classes, Popover } from "@/components";
import type { Row } from "../rows/row";
import type { OlderPages } from "./row-list";

const MAX_MARKS = 20;
const MAX_CHARS = 90;

interface Turn {
  readonly key: string;
  readonly index: number;
  readonly text: string;
}

export function turnsOf(rows: readonly Row[]): readonly Turn[] {
  return rows.flatMap((row, index) => (row.kind === "user" && row.messageId !== null ? [{ key: row.key, index, text: firstWords(row.text) }] : []));
}

function firstWords(text: string): string {
  const line = text
    .slice(0, 4 * MAX_CHARS)
    .trim()
    .replace(/\s+/g, " ");
  if (line === "") return "Files only";
  return line.length > MAX_CHARS ? `${line.slice(0, MAX_CHARS - 1)}…` : line;
}

/** The marks around the turn that is read, at most as many as fit. */
export function shownMarks(count: number, current: number, most = MAX_MARKS): { from: number; to: number } {
  const from = Math.max(0, Math.min(current - Math.floor(most / 2), count - most));
  return { from, to: Math.min(count, from + most) };
}

/** Called when the list opens, and when another turn becomes the one that is read; not with each render. */
const intoView = (item: HTMLElement | null) => item?.scrollIntoView({ block: "nearest" });

interface TurnRailProps {
  readonly rows: readonly Row[];
  /** The row at the top of the window. */
  readonly topIndex: number;
  readonly older: OlderPages;
  readonly goTo: (index: number) => void;
}

export default function TurnRail({ rows, topIndex, older, goTo }: TurnRailProps) {
  const [isOpen, setOpen] = useState(false);
  const turns = useMemo(() => turnsOf(rows), [rows]);
  const current = Math.max(
    0,
    turns.findLastIndex((turn) => turn.index <= topIndex),
  );
  const { from, to } = shownMarks(turns.length, current);
  const trigger = (
    <button type="button" className="timeline-rail" aria-label="Prompts of this chat" title="Prompts of this chat">
      {turns.slice(from, to).map((turn, place) => (
        <i key={turn.key} className={classes(from + place === current && "is-current")} />
      ))}
    </button>
  );
  return (
    <Popover label="Prompts of this chat" side="left" align="center" className="timeline-rail-list" open={isOpen} onOpenChange={setOpen} trigger={trigger}>
      {older.hasMore && (
        <Button size="xs" variant="quiet" disabled={older.isLoading} onClick={older.load}>
          {older.isLoading ? "Loading earlier prompts" : "Earlier prompts"}
        </Button>
      )}
      <ol>
        {turns.map((turn, place) => (
          <li key={turn.key}>
            <button
              type="button"
              aria-current={place === current ? "location" : undefined}
              ref={place === current ? intoView : null}
              onClick={() => {
                setOpen(false);
                goTo(turn.index);
              }}
            >
              {turn.text}
            </button>
          </li>
        ))}
      </ol>
    </Popover>
  );
}

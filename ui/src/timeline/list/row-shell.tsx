/** A row in its place, with its name, and its actions while it is pointed at or has the focus. */
import { Check, Copy, GitFork, Link2, Pencil } from "lucide-react";
import { memo, type Ref, useState } from "react";
import { ErrorBoundary, IconButton } from "@/components";
import { useCopy } from "@/text/copy";
import { useTimelineActions } from "../actions";
import { nameOf } from "../rows/brief";
import type { Row } from "../rows/row";
import { textOfRow } from "../rows/row-text";
import { RowView } from "../views/row-view";

export interface RowShellProps {
  readonly row: Row;
  readonly index: number;
  readonly start: number;
  readonly isMarked: boolean;
  readonly measure: Ref<HTMLElement>;
}

const WITH_ACTIONS = new Set<Row["kind"]>(["user", "prose"]);

export const RowShell = memo(function RowShell({ row, index, start, isMarked, measure }: RowShellProps) {
  const [isHot, setHot] = useState(false);
  const hasActions = WITH_ACTIONS.has(row.kind);
  return (
    <article
      ref={measure}
      data-index={index}
      data-key={row.key}
      className={classNames(row, isMarked)}
      style={{ transform: `translateY(${start}px)` }}
      aria-label={nameOf(row)}
      tabIndex={-1}
      onPointerEnter={() => setHot(true)}
      onPointerLeave={() => setHot(false)}
      onFocus={() => setHot(true)}
      onBlur={(event) => {
        if (!event.currentTarget.contains(event.relatedTarget)) setHot(false);
      }}
    >
      <ErrorBoundary what="This part of the chat cannot be shown." resetKey={row}>
        <RowView row={row} />
      </ErrorBoundary>
      {isHot && hasActions && row.messageId !== null && <RowActions row={row} messageId={row.messageId} />}
    </article>
  );
});

function classNames(row: Row, isMarked: boolean): string {
  const gap = row.isTight ? "is-tight" : row.kind === "user" ? "is-asked" : "";
  return ["timeline-row", gap, isMarked && "is-marked", row.isEarlier === true && "is-earlier"].filter(Boolean).join(" ");
}

function RowActions({ row, messageId }: { readonly row: Row; readonly messageId: number }) {
  const actions = useTimelineActions();
  const [isCopied, copy] = useCopy();
  return (
    <div className={row.kind === "user" ? "timeline-row-actions is-mine" : "timeline-row-actions"} role="toolbar" aria-label="Message">
      <IconButton size="sm" icon={isCopied ? Check : Copy} label={isCopied ? "Copied" : "Copy"} shortcut="C" onClick={() => copy(textOfRow(row))} />
      {row.kind === "user" && <IconButton size="sm" icon={Pencil} label="Edit" shortcut="E" onClick={() => actions.edit(messageId)} />}
      <IconButton size="sm" icon={GitFork} label="Fork from here" shortcut="F" onClick={() => void actions.fork(messageId)} />
      <IconButton size="sm" icon={Link2} label="Copy link" onClick={() => actions.copyLink(messageId)} />
    </div>
  );
}

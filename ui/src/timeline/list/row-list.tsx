/** The scrolling list of rows. Only rows near the window are in the document. */
import { defaultRangeExtractor, type Range, useVirtualizer } from "@tanstack/react-virtual";
import { ArrowDown, ArrowUp, Check, Copy, GitFork, Link2, Pencil } from "lucide-react";
import { lazy, memo, type Ref, type RefObject, Suspense, useCallback, useEffect, useMemo, useRef, useState } from "react";
import { Button, ErrorBoundary, IconButton, Spinner } from "@/components";
import { useCopy } from "@/text/code";
import { useTimelineActions } from "../actions";
import { nameOf, textOfRow } from "../rows/brief";
import { isQuiet } from "../rows/call-view";
import type { Row } from "../rows/row";
import { RowView } from "../views/row-view";
import { VersionControl } from "../views/versions";
import { Follower } from "./follow";
import { useRowKeys } from "./use-row-keys";
import { moveListOf, type ScrollPlace, useKeptPlace, useScroll } from "./use-scroll";

const TurnRail = lazy(() => import("./turn-rail"));

interface RowListProps {
  readonly chatId: string;
  readonly rows: readonly Row[];
  /** Older messages: whether there are any, and how to get them. */
  readonly older: OlderPages;
  /** A prompt was sent with this many messages in the chat: it is shown near the top. */
  readonly promptAfter: number | null;
  readonly markedMessageId: number | null;
  readonly placeRef?: RefObject<ListPlace | null>;
  readonly onSeen?: (messageId: number) => void;
}

export interface OlderPages {
  readonly hasMore: boolean;
  readonly isLoading: boolean;
  readonly error: string | null;
  load: () => void;
}

export interface ListPlace extends ScrollPlace {
  readonly toMessage: (messageId: number) => boolean;
}

const TOP_PX = 8;
const OLDER_PX = 44;
const END_PX = 24;
const PROMPT_PX = 4;
const LOAD_OLDER_PX = 600;
const OVERSCAN = 6;
/** A chat with fewer prompts is read without the rail. */
const MIN_RAIL_TURNS = 6;

export function RowList({ chatId, rows, older, promptAfter, markedMessageId, placeRef, onSeen }: RowListProps) {
  const log = useRef<HTMLDivElement>(null);
  const [focusedKey, setFocusedKey] = useState<string | null>(null);
  const focused = useMemo(() => (focusedKey === null ? -1 : rows.findIndex((row) => row.key === focusedKey)), [rows, focusedKey]);
  const rangeExtractor = useCallback((range: Range) => withRow(defaultRangeExtractor(range), focused), [focused]);
  const keys = useKeys(rows);
  const [follower] = useState(() => new Follower());
  const scrollToFn = useMemo(() => moveListOf(follower), [follower]);
  const getItemKey = useCallback((index: number) => keys[index] ?? index, [keys]);
  // eslint-disable-next-line react-hooks/incompatible-library -- the list is not compiled; its rows are memoized
  const virtualizer = useVirtualizer<HTMLDivElement, HTMLElement>({
    count: rows.length,
    getScrollElement: () => log.current,
    estimateSize: (index) => estimateHeight(rows[index]),
    getItemKey,
    rangeExtractor,
    scrollToFn,
    overscan: OVERSCAN,
    paddingStart: older.hasMore ? TOP_PX + OLDER_PX : TOP_PX,
    paddingEnd: END_PX,
    // Rows that are put in front do not move the row that is read. Following is our own (useScroll).
    anchorTo: "end",
    scrollEndThreshold: -1,
  });
  const place = useScroll(log, virtualizer, follower);
  useKeptPlace(chatId, log, keys, place, follower);
  const toMessage = useCallback(
    (messageId: number) => {
      const index = rows.findIndex((row) => row.messageId !== null && row.messageId >= messageId);
      if (index < 0) return false;
      place.toRow(index, "start");
      return true;
    },
    [rows, place],
  );
  useEffect(() => {
    if (placeRef !== undefined) placeRef.current = { ...place, toMessage };
  });
  useRowKeys({ log, rows, focused, place, older });

  const isLong = useMemo(() => rows.filter((row) => row.kind === "user").length >= MIN_RAIL_TURNS, [rows]);

  const items = virtualizer.getVirtualItems();
  const total = virtualizer.getTotalSize();
  const spare = spareBelow(rows, promptAfter, virtualizer.scrollRect?.height ?? 0, total, (index) => virtualizer.measurementsCache[index]?.start);
  const first = items[0]?.start ?? 0;
  const scrollTop = virtualizer.scrollOffset ?? 0;
  useEffect(() => {
    if (older.hasMore && !older.isLoading && older.error === null && scrollTop < LOAD_OLDER_PX && first < LOAD_OLDER_PX * 2) older.load();
  }, [older, scrollTop, first, rows.length]);
  const lastShown = virtualizer.range?.endIndex ?? -1;
  useEffect(() => {
    for (let index = Math.min(lastShown, rows.length - 1); index >= 0; index -= 1) {
      const id = rows[index]?.messageId ?? null;
      if (id === null) continue;
      onSeen?.(id);
      return;
    }
  }, [rows, lastShown, onSeen]);

  return (
    <div className="timeline-box">
      <div
        ref={log}
        className="timeline-log"
        role="log"
        aria-live="off"
        aria-label="Messages"
        tabIndex={0}
        onFocus={(event) => setFocusedKey(rowKeyOf(event.target))}
        onBlur={(event) => {
          if (!event.currentTarget.contains(event.relatedTarget)) setFocusedKey(null);
        }}
      >
        <div className="timeline-rows" style={{ height: total + spare }}>
          <OlderPill older={older} isEmpty={rows.length === 0} />
          {items.map((item) => {
            const row = rows[item.index];
            if (row === undefined) return null;
            return (
              <RowShell
                key={row.key}
                row={row}
                index={item.index}
                isLast={item.index === rows.length - 1}
                start={item.start}
                isMarked={markedMessageId !== null && row.messageId === markedMessageId}
                measure={virtualizer.measureElement}
              />
            );
          })}
        </div>
      </div>
      {isLong && (
        <Suspense>
          <TurnRail rows={rows} topIndex={virtualizer.range?.startIndex ?? 0} older={older} goTo={(index) => place.toRow(index, "start")} />
        </Suspense>
      )}
      <JumpButton rows={rows} place={place} />
    </div>
  );
}

/** The same list as long as no row comes, goes or moves: the places of all rows are computed from it. */
function useKeys(rows: readonly Row[]): readonly string[] {
  const [keys, setKeys] = useState(() => rows.map((row) => row.key));
  const isSame = keys.length === rows.length && rows.every((row, index) => row.key === keys[index]);
  if (isSame) return keys;
  const fresh = rows.map((row) => row.key);
  setKeys(fresh);
  return fresh;
}

function rowKeyOf(target: EventTarget): string | null {
  return target instanceof Element ? (target.closest("article")?.dataset.key ?? null) : null;
}

/** The row with the focus stays in the document wherever the list is. */
function withRow(indexes: number[], index: number): number[] {
  if (index < 0 || indexes.includes(index)) return indexes;
  return [...indexes, index].sort((one, two) => one - two);
}

/** Empty space below the last row, so that the prompt that was just sent can stand near the top. */
function spareBelow(rows: readonly Row[], promptAfter: number | null, viewport: number, total: number, startOf: (index: number) => number | undefined): number {
  if (promptAfter === null) return 0;
  const index = rows.findLastIndex((row) => row.kind === "user" && (row.pending !== null || (row.messageId ?? 0) > promptAfter));
  const start = startOf(index);
  return start === undefined ? 0 : Math.max(0, viewport - PROMPT_PX - (total - start));
}

function OlderPill({ older, isEmpty }: { readonly older: OlderPages; readonly isEmpty: boolean }) {
  if (!older.hasMore || isEmpty) return null;
  return (
    <div className="timeline-older">
      {older.isLoading ? (
        <span className="ui-button is-xs is-quiet">
          <Spinner />
          Loading earlier messages
        </span>
      ) : (
        <Button size="xs" variant="quiet" icon={ArrowUp} onClick={older.load}>
          {older.error === null ? "Earlier messages" : "Earlier messages could not be loaded. Retry"}
        </Button>
      )}
    </div>
  );
}

/** Leads back to the end, and counts what has come since the reader left it. */
function JumpButton({ rows, place }: { readonly rows: readonly Row[]; readonly place: ScrollPlace }) {
  const lastId = rows.findLast((row) => row.messageId !== null)?.messageId ?? 0;
  const [leftAt, setLeftAt] = useState(lastId);
  if (place.isFollowing && leftAt !== lastId) setLeftAt(lastId);
  if (place.isFollowing || rows.length === 0) return null;
  const fresh = new Set(rows.filter((row) => (row.messageId ?? 0) > leftAt).map((row) => row.messageId)).size;
  return (
    <Button size="sm" icon={ArrowDown} className="timeline-jump" onClick={place.toEnd}>
      {fresh === 0 ? "Latest" : `${fresh} new`}
    </Button>
  );
}

// A row in its place, with its name, and its actions while it is pointed at or has the focus.

interface RowShellProps {
  readonly row: Row;
  readonly index: number;
  readonly isLast: boolean;
  readonly start: number;
  readonly isMarked: boolean;
  readonly measure: Ref<HTMLElement>;
}

const WITH_ACTIONS = new Set<Row["kind"]>(["user", "prose"]);

export const RowShell = memo(function RowShell({ row, index, isLast, start, isMarked, measure }: RowShellProps) {
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
      {isLast && row.kind !== "user" && <VersionControl messageId={null} />}
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

// Heights of rows before they are measured. Close is enough: the list keeps its place when they differ.

const LINE_CHARS = 78;
const PROSE_LINE = 24;

const known = new WeakMap<Row, number>();

function estimateHeight(row: Row | undefined): number {
  if (row === undefined) return 40;
  const found = known.get(row) ?? estimate(row);
  known.set(row, found);
  return found;
}

function estimate(row: Row): number {
  const gap = row.isTight ? 0 : 12;
  switch (row.kind) {
    case "user":
      return 12 + gap + 24 + lines(row.text, 60) * PROSE_LINE + (row.files.length + row.references.length > 0 ? 34 : 0);
    case "prose":
      return gap + lines(row.text, LINE_CHARS) * PROSE_LINE;
    case "reasoning":
      return gap + 24 + (row.isLive ? lines(row.text, LINE_CHARS) * 22 : 0);
    case "tool":
      if (isQuiet(row.call)) return gap + 28;
      return gap + (row.call.state === "failed" || row.call.name === "edit_files" ? 200 : 38);
    case "callout":
      return gap + 100;
    default:
      return gap + 28;
  }
}

function lines(text: string, width: number): number {
  let count = 0;
  let from = 0;
  // Long texts are as long as their beginning makes them look.
  const end = Math.min(text.length, 1000);
  while (from < end) {
    const next = text.indexOf("\n", from);
    const to = next < 0 || next > end ? end : next;
    count += Math.max(1, Math.ceil((to - from) / width));
    from = to + 1;
  }
  return Math.max(1, Math.round((count * text.length) / Math.max(1, end)));
}

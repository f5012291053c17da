/** Keys of the timeline: from row to row, from prompt to prompt, and what they do with the row in focus. */
import { type RefObject, useEffect, useRef } from "react";
import { useCommand } from "@/platform/keys";
import { copyText } from "@/platform/plain-http";
import { useTimelineActions } from "../actions";
import { textOfRow } from "../rows/brief";
import type { Row } from "../rows/row";
import type { OlderPages } from "./row-list";
import type { ScrollPlace } from "./use-scroll";

interface RowKeys {
  readonly log: RefObject<HTMLDivElement | null>;
  readonly rows: readonly Row[];
  /** -1: none. */
  readonly focused: number;
  readonly place: ScrollPlace;
  readonly older: Pick<OlderPages, "hasMore" | "isLoading" | "error" | "load">;
}

export function useRowKeys({ log, rows, focused, place, older }: RowKeys): void {
  const actions = useTimelineActions();
  const row = rows[focused];
  const go = (index: number) => {
    const key = rows[index]?.key;
    if (key === undefined || log.current === null) return false;
    if (index === rows.length - 1) place.toEnd();
    else place.toRow(index, "auto");
    focusRow(log.current, key);
    return true;
  };
  const from = (step: 1 | -1) => (focused >= 0 ? focused + step : visibleRow(log.current, step));
  const prompt = (step: 1 | -1) => {
    for (let index = from(step); index >= 0 && index < rows.length; index += step) {
      if (rows[index]?.kind === "user") return go(index);
    }
    return false;
  };
  useCommand("message.next", () => go(from(1)));
  useCommand("message.previous", () => go(from(-1)));
  useCommand("prompt.next", () => prompt(1));
  useCommand("prompt.previous", () => prompt(-1));
  const wantsTop = useRef(false);
  const isComplete = !older.hasMore || older.error !== null;
  useEffect(() => {
    // All of the chat comes first, page by page.
    if (!wantsTop.current || older.isLoading) return;
    if (!isComplete) {
      older.load();
      return;
    }
    wantsTop.current = false;
    go(0);
  });
  useCommand("timeline.top", () => {
    wantsTop.current = !isComplete && !wantsTop.current;
    if (wantsTop.current && !older.isLoading) older.load();
    return go(0);
  });
  useCommand("timeline.latest", () => {
    place.toEnd();
    return go(rows.length - 1);
  });
  useCommand("message.edit", () => {
    if (row?.kind !== "user" || row.messageId === null) return false;
    actions.edit(row.messageId);
    return true;
  });
  useCommand("message.copy", () => {
    // A selection is copied by the browser's own key; C alone means the row.
    if (row === undefined) return false;
    void copyText(textOfRow(row));
    return true;
  });
  useCommand("message.fork", () => {
    if (row === undefined || row.messageId === null) return false;
    void actions.fork(row.messageId);
    return true;
  });
  useCommand("card.toggle", () => {
    if (row === undefined || log.current === null) return false;
    const summary = findRow(log.current, row.key)?.querySelector("summary");
    summary?.click();
    return summary !== null && summary !== undefined;
  });
}

/** A row that is far away is in the document only after the list has moved there. */
function focusRow(log: HTMLElement, key: string, tries = 10): void {
  const found = findRow(log, key);
  if (found !== null) found.focus({ preventScroll: true });
  else if (tries > 0) requestAnimationFrame(() => focusRow(log, key, tries - 1));
}

function findRow(log: HTMLElement, key: string): HTMLElement | null {
  return log.querySelector<HTMLElement>(`article[data-key="${CSS.escape(key)}"]`);
}

/** Where to begin when no row has the focus: at the top of the window going down, at its end going up. */
function visibleRow(log: HTMLElement | null, step: 1 | -1): number {
  if (log === null) return -1;
  const { top, bottom } = log.getBoundingClientRect();
  const shown = [...log.querySelectorAll<HTMLElement>("article")].filter((row) => {
    const box = row.getBoundingClientRect();
    return box.bottom > top + 8 && box.top < bottom - 8;
  });
  const indexes = shown.map((row) => Number(row.dataset.index)).sort((one, two) => one - two);
  return (step === 1 ? indexes[0] : indexes.at(-1)) ?? -1;
}

/** All of a chat for the printer, beside the page: the list on the screen holds only what is near. Loaded when it is asked for. */
import "@/styles/print.css";
import { useEffect, useRef } from "react";
import { createPortal } from "react-dom";
import type { OpenChat } from "@/connection";
import { announce } from "@/platform/toasts";
import { nameOf } from "../rows/brief";
import type { Row } from "../rows/row";
import { RowView } from "../views/row-view";

const MAX_PAGES = 100;
/** Formulas and diagrams are drawn when nothing has changed for this long. */
const STILL_MS = 500;
const LONGEST_MS = 15_000;

interface PrintSheetProps {
  readonly chat: OpenChat;
  readonly rows: readonly Row[];
  readonly title: string;
  readonly onDone: () => void;
}

export default function PrintSheet({ chat, rows, title, onDone }: PrintSheetProps) {
  const { state, loadingOlder, olderError, loadOlder } = chat;
  const sheet = useRef<HTMLDivElement>(null);
  const pages = useRef(0);
  const done = useRef(onDone);
  useEffect(() => {
    done.current = onDone;
  });
  // Paper is light; diagrams are pictures in the colours of the theme.
  const { theme } = document.documentElement.dataset;
  const isDark = theme === "dark" || (theme === undefined && window.matchMedia("(prefers-color-scheme: dark)").matches);
  const isWhole = !state.hasOlder || olderError !== null;
  useEffect(() => {
    if (isWhole || loadingOlder || pages.current >= MAX_PAGES) return;
    pages.current += 1;
    announce("Loading the whole chat");
    void loadOlder();
  }, [isWhole, loadingOlder, loadOlder, rows]);
  useEffect(() => {
    const element = sheet.current;
    if (!isWhole || element === null) return;
    const before = document.title;
    const print = () => {
      stop();
      // The browser names the file by it.
      document.title = title;
      window.print();
      document.title = before;
      done.current();
    };
    let timer = setTimeout(print, STILL_MS);
    const latest = setTimeout(print, LONGEST_MS);
    const watch = new MutationObserver(() => {
      clearTimeout(timer);
      timer = setTimeout(print, STILL_MS);
    });
    const stop = () => {
      watch.disconnect();
      clearTimeout(timer);
      clearTimeout(latest);
    };
    watch.observe(element, { subtree: true, childList: true, characterData: true });
    return stop;
  }, [isWhole, title]);
  return createPortal(
    <div ref={sheet} className={isDark ? "timeline-print is-dark" : "timeline-print"} aria-hidden="true" inert>
      <h1>{title}</h1>
      {rows.map((row) => (
        <article key={row.key} className={row.kind === "user" ? "timeline-print-row is-asked" : "timeline-print-row"} aria-label={nameOf(row)}>
          <RowView row={row} />
        </article>
      ))}
    </div>,
    document.body,
  );
}

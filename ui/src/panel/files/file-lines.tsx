/** The lines of a file with their numbers. A click on a number chooses a line, with Shift a range. */
import { type MouseEvent, useEffect, useMemo, useRef } from "react";
import { classes } from "@/components";
import { languageOf } from "@/text/file-language";
import { useHighlightedLines } from "@/text/use-highlighted";

export interface LineRange {
  readonly from: number;
  readonly to: number;
}

interface FileLinesProps {
  readonly path: string;
  readonly text: string;
  readonly wrap: boolean;
  readonly chosen: LineRange | null;
  readonly onChoose: (range: LineRange) => void;
  /** The line to scroll to; another object scrolls again. */
  readonly target: { readonly line: number } | null;
}

const CHUNK = 200;

export function FileLines({ path, text, wrap, chosen, onChoose, target }: FileLinesProps) {
  const lines = useMemo(() => splitText(text), [text]);
  const coloured = useHighlightedLines(lines, languageOf(path));
  const root = useRef<HTMLDivElement>(null);
  const chunks = useMemo(() => Array.from({ length: Math.ceil(lines.length / CHUNK) }, (_, index) => index * CHUNK), [lines]);

  useEffect(() => {
    if (target === null) return;
    root.current?.querySelector(`[data-line="${target.line}"]`)?.scrollIntoView({ block: "center" });
  }, [target, lines]);

  const onClick = (event: MouseEvent<HTMLDivElement>) => {
    const number = lineOf(event.target);
    if (number === null) return;
    if (event.shiftKey && chosen !== null) onChoose({ from: Math.min(chosen.from, number), to: Math.max(chosen.from, number) });
    else onChoose({ from: number, to: number });
  };

  return (
    <div
      className={classes("files-lines", wrap && "is-wrapped")}
      ref={root}
      role="region"
      aria-label={`Content of ${path}`}
      tabIndex={0}
      onClick={onClick}
    >
      {chunks.map((first) => (
        <div key={first} className="files-chunk">
          {lines.slice(first, first + CHUNK).map((line, offset) => {
            const number = first + offset + 1;
            const isChosen = chosen !== null && number >= chosen.from && number <= chosen.to;
            return (
              <div key={number} className={classes("files-line", isChosen && "is-on")} data-line={number}>
                <span>{number}</span>
                <code>{coloured?.[number - 1] ?? line.text}</code>
              </div>
            );
          })}
        </div>
      ))}
    </div>
  );
}

/** Without the empty line after a last line break. */
export function splitText(text: string): readonly { text: string; changed: null }[] {
  const lines = text.split(/\r?\n/);
  if (lines.length > 1 && lines.at(-1) === "") lines.pop();
  return lines.map((line) => ({ text: line, changed: null }));
}

/** The number that was clicked; a click in the text is a selection of the browser. */
function lineOf(target: EventTarget): number | null {
  if (!(target instanceof HTMLElement) || target.tagName !== "SPAN" || !target.parentElement?.classList.contains("files-line")) return null;
  return Number(target.parentElement.dataset.line);
}

/** A block of code: language, copy, wrapped lines by choice, colours when they are there. */
import { Check, Copy, WrapText } from "lucide-react";
import { type ReactNode, useCallback, useEffect, useMemo, useRef, useState } from "react";
import { copyText } from "@/platform/plain-http";
import { looseType } from "./diff";
import type { Piece } from "./highlight";

interface CodeBlockProps {
  readonly text: string;
  readonly language: string;
  readonly isLive?: boolean;
}

export function CodeBlock({ text, language, isLive = false }: CodeBlockProps) {
  const [isWrapped, setWrapped] = useState(false);
  const [isCopied, copy] = useCopy();
  const name = /^[\w+#.-]{1,24}/.exec(language)?.[0] ?? "";
  const isDiff = name === "diff" || name === "patch";
  const nodes = useHighlighted(text, isDiff ? "" : name, isLive);
  return (
    <figure className="markdown-code">
      <figcaption>
        <span className="ui-grow">{name === "" ? "text" : name}</span>
        <button
          type="button"
          className={isWrapped ? "ui-icon-button is-sm is-on" : "ui-icon-button is-sm"}
          aria-label="Wrap lines"
          aria-pressed={isWrapped}
          onClick={() => setWrapped(!isWrapped)}
        >
          <WrapText className="ui-icon is-sm" aria-hidden />
        </button>
        <button type="button" className="ui-icon-button is-sm" aria-label={isCopied ? "Copied" : "Copy code"} onClick={() => copy(text)}>
          {isCopied ? <Check className="ui-icon is-sm tone-ok" aria-hidden /> : <Copy className="ui-icon is-sm" aria-hidden />}
        </button>
      </figcaption>
      <pre className={isWrapped ? "is-wrapped" : undefined} tabIndex={0} aria-label={name === "" ? "Code" : `Code, ${name}`}>
        <code className={isDiff ? "diff-code" : undefined}>{nodes ?? <LongText text={text} {...(isDiff ? { render: diffCode } : {})} />}</code>
        {isLive && <span className="markdown-caret" aria-hidden="true" />}
      </pre>
    </figure>
  );
}

/** Lines of a diff have the colours that they have on cards and in the panel. */
function diffCode(text: string): ReactNode {
  return text
    .replace(/\n$/, "")
    .split("\n")
    .map((line, index) => <span key={index} className={`is-${looseType(line)}`}>{`${line}\n`}</span>);
}

// Coloured code as React nodes, once the highlighter is loaded; null until then.

const MAX_CHARS = 60_000;
const MAX_REMEMBERED = 200;
const remembered = new Map<string, readonly Piece[]>();

function useHighlighted(text: string, language: string, isLive: boolean): ReactNode {
  const pieces = usePieces(text, language, isLive);
  return useMemo(() => (pieces === null ? null : pieces.map(pieceNode)), [pieces]);
}

interface ColouredLine {
  readonly text: string;
  readonly changed: readonly [number, number] | null;
}

/** The same for lines, which keep the marks of the words that changed in them. */
export function useHighlightedLines(lines: readonly ColouredLine[], language: string): readonly ReactNode[] | null {
  const text = useMemo(() => lines.map((line) => line.text).join("\n"), [lines]);
  const pieces = usePieces(text, language, false);
  return useMemo(() => {
    if (pieces === null) return null;
    return splitLines(pieces).map((line, index) => lineNodes(line, lines[index]?.changed ?? null));
  }, [pieces, lines]);
}

function usePieces(text: string, language: string, isLive: boolean): readonly Piece[] | null {
  const key = `${language}\n${text}`;
  const wanted = !isLive && language !== "" && text !== "" && text.length <= MAX_CHARS;
  const [found, setFound] = useState<{ key: string; pieces: readonly Piece[] } | null>(null);
  useEffect(() => {
    if (!wanted || remembered.has(key)) return;
    let isCurrent = true;
    void load(key, text, language).then((pieces) => {
      if (isCurrent && pieces !== null) setFound({ key, pieces });
    });
    return () => {
      isCurrent = false;
    };
  }, [wanted, key, text, language]);
  if (!wanted) return null;
  return remembered.get(key) ?? (found?.key === key ? found.pieces : null);
}

function pieceNode(piece: Piece, index: number): ReactNode {
  if (piece.hue === "") return piece.text;
  return (
    <span key={index} className={piece.hue}>
      {piece.text}
    </span>
  );
}

function splitLines(pieces: readonly Piece[]): readonly (readonly Piece[])[] {
  const lines: Piece[][] = [[]];
  for (const piece of pieces) {
    piece.text.split("\n").forEach((text, index) => {
      if (index > 0) lines.push([]);
      if (text !== "") lines.at(-1)?.push({ text, hue: piece.hue });
    });
  }
  return lines;
}

function lineNodes(pieces: readonly Piece[], changed: readonly [number, number] | null): ReactNode {
  if (changed === null) return pieces.map(pieceNode);
  const [from, to] = changed;
  const slice = (start: number, end: number) => slicePieces(pieces, start, end).map(pieceNode);
  return (
    <>
      {slice(0, from)}
      <mark>{slice(from, to)}</mark>
      {slice(to, Number.POSITIVE_INFINITY)}
    </>
  );
}

function slicePieces(pieces: readonly Piece[], from: number, to: number): readonly Piece[] {
  let at = 0;
  return pieces.flatMap((piece) => {
    const start = at;
    at += piece.text.length;
    const text = piece.text.slice(Math.max(0, from - start), Math.max(0, to - start));
    return text === "" ? [] : [{ text, hue: piece.hue }];
  });
}

async function load(key: string, text: string, language: string): Promise<readonly Piece[] | null> {
  try {
    const { highlight } = await import("./highlight");
    const pieces = highlight(text, language);
    if (pieces === null) return null;
    if (remembered.size >= MAX_REMEMBERED) remembered.delete(remembered.keys().next().value ?? "");
    remembered.set(key, pieces);
    return pieces;
  } catch {
    // Code without colours is still code: the file of the highlighter could not be loaded.
    return null;
  }
}

/** What the highlighter may know the language of a file by: its ending, or its name if that says it. */
export function languageOf(path: string): string {
  const name = fileName(path).toLowerCase();
  if (name === "dockerfile" || name === "makefile") return name;
  const ending = name.includes(".") ? (name.split(".").at(-1) ?? "") : "";
  return ending === "cfg" ? "ini" : ending;
}

export function fileName(path: string): string {
  return path.replace(/\/+$/, "").split("/").at(-1) ?? path;
}

// Text of any length in few nodes: its beginning and end, and the rest in steps.

const STEP = 2000;
const FULL_LINES = 400;
const EDGE_LINES = 150;

const LINE_CHARS = 5000;

/** One line can be as long as a file. */
function clipLine(line: string): string {
  if (line.length <= LINE_CHARS) return line;
  return `${line.slice(0, LINE_CHARS)}… (${(line.length - LINE_CHARS).toLocaleString("en")} more characters)`;
}

interface LongTextProps {
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

const SHOWN_MS = 1500;

/** Copies text, and says for a moment that it was copied. */
export function useCopy(): readonly [boolean, (text: string) => void] {
  const [isCopied, setCopied] = useState(false);
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  useEffect(() => () => clearTimeout(timer.current), []);
  const copy = useCallback((text: string) => {
    void copyText(text).then((done) => {
      setCopied(done);
      clearTimeout(timer.current);
      timer.current = setTimeout(() => setCopied(false), SHOWN_MS);
    });
  }, []);
  return [isCopied, copy];
}

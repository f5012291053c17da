/** Coloured code as React nodes, once the highlighter is loaded; null until then. */
import { useEffect, useMemo, useState, type ReactNode } from "react";
import type { Piece } from "./highlight";

const MAX_CHARS = 60_000;
const MAX_REMEMBERED = 200;
const remembered = new Map<string, readonly Piece[]>();

export function useHighlighted(text: string, language: string, isLive: boolean): ReactNode {
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

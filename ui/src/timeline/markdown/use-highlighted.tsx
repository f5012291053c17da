/** Coloured code as React nodes, once the highlighter is loaded; null until then. */
import { useEffect, useState, type ReactNode } from "react";
import type { Piece } from "./highlight";

const MAX_CHARS = 60_000;
const MAX_REMEMBERED = 200;
const remembered = new Map<string, readonly Piece[]>();

export function useHighlighted(text: string, language: string, isLive: boolean): ReactNode {
  const key = `${language}\n${text}`;
  const wanted = !isLive && language !== "" && text.length <= MAX_CHARS;
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
  const pieces = wanted ? (remembered.get(key) ?? (found?.key === key ? found.pieces : null)) : null;
  return pieces === null ? null : pieceNodes(pieces);
}

export function pieceNodes(pieces: readonly Piece[]): ReactNode {
  return pieces.map((piece, index) =>
    piece.hue === "" ? (
      piece.text
    ) : (
      <span key={index} className={piece.hue}>
        {piece.text}
      </span>
    ),
  );
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

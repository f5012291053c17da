/** What a command printed. However long it is, few nodes show it. */
import { type ReactNode, useLayoutEffect, useRef } from "react";
import { LongText } from "@/text/long-text";
import { readAnsi } from "./ansi";

export interface OutputProps {
  readonly text: string;
  readonly label: string;
  /** Only this many lines of its end, until more is asked for. */
  readonly tail?: number;
  readonly isLive?: boolean;
}

export function Output({ text, label, tail, isLive = false }: OutputProps) {
  const place = useRef<HTMLPreElement>(null);
  useLayoutEffect(() => {
    if (isLive && place.current !== null) place.current.scrollTop = place.current.scrollHeight;
  }, [isLive, text]);
  return (
    <pre ref={place} className="tool-output" tabIndex={0} aria-label={label}>
      <LongText text={text.replace(/\n+$/, "")} {...(tail === undefined ? {} : { tail })} render={coloured} />
    </pre>
  );
}

function coloured(text: string): ReactNode {
  return readAnsi(text).map((piece, index) =>
    piece.className === "" ? (
      piece.text
    ) : (
      <span key={index} className={piece.className}>
        {piece.text}
      </span>
    ),
  );
}

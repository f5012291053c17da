/** What a command printed. However long it is, few nodes show it. */
import { type ReactNode, useLayoutEffect, useRef } from "react";
import { LongText } from "@/text/code";

interface OutputProps {
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

// Output of commands: colours become classes, everything else a terminal would obey is dropped.

interface AnsiPiece {
  readonly text: string;
  readonly className: string;
}

const CONTROL =
  // eslint-disable-next-line no-control-regex -- these are the characters that terminals obey
  /\u001b\[([0-9;:]*)m|\u001b\[[0-?]*[ -/]*[@-~]|\u001b\][^\u0007\u001b]*(?:\u0007|\u001b\\)?|\u001b[@-Z\\-_]?|[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f]/g;
const HUES: Readonly<Record<number, string>> = { 1: "tone-danger", 2: "tone-ok", 3: "tone-warn", 4: "tone-info", 5: "tone-accent", 6: "tone-info" };

export function readAnsi(text: string): readonly AnsiPiece[] {
  const pieces: AnsiPiece[] = [];
  const style = new Style();
  let from = 0;
  const clean = overwriteLines(text);
  for (const found of clean.matchAll(CONTROL)) {
    push(pieces, clean.slice(from, found.index), style.className);
    if (found[1] !== undefined) style.apply(found[1]);
    from = found.index + found[0].length;
  }
  push(pieces, clean.slice(from), style.className);
  return pieces;
}

/** A line that ends in a carriage return is written over: progress bars leave only their last state. */
function overwriteLines(text: string): string {
  if (!text.includes("\r")) return text;
  return text
    .replaceAll("\r\n", "\n")
    .split("\n")
    .map((line) => line.replace(/\r+$/, "").split("\r").at(-1) ?? "")
    .join("\n");
}

function push(pieces: AnsiPiece[], text: string, className: string): void {
  const last = pieces.at(-1);
  if (text === "") return;
  if (last?.className === className) pieces[pieces.length - 1] = { text: last.text + text, className };
  else pieces.push({ text, className });
}

class Style {
  private hue = "";
  private isBold = false;
  private isDim = false;

  get className(): string {
    return [this.hue, this.isBold && "ui-strong", this.isDim && "tone-subtle"].filter(Boolean).join(" ");
  }

  apply(codes: string): void {
    const numbers = codes.split(/[;:]/).map(Number);
    for (let index = 0; index < numbers.length; index += 1) {
      const code = numbers[index] ?? 0;
      if (code === 38 || code === 48) index += numbers[index + 1] === 5 ? 2 : 4;
      else this.applyOne(code);
    }
  }

  private applyOne(code: number): void {
    if (code === 0) this.hue = "";
    if (code === 0 || code === 22) this.isBold = this.isDim = false;
    if (code === 1) this.isBold = true;
    if (code === 2) this.isDim = true;
    if (code === 39) this.hue = "";
    if ((code >= 30 && code <= 37) || (code >= 90 && code <= 97)) this.hue = HUES[code % 10] ?? "";
  }
}

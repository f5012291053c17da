/** Formulas and footnotes in markdown: where they begin and end. Prices and variables of a shell stay text. */
import type { MarkedOptions, Token, TokenizerThis } from "marked";

export interface MathToken {
  readonly type: "math";
  readonly raw: string;
  readonly text: string;
  readonly isDisplay: boolean;
  /** It is being written: its end is missing. */
  readonly isOpen: boolean;
}

export interface FootnoteToken {
  readonly type: "footnote";
  readonly raw: string;
  readonly label: string;
  readonly tokens: Token[];
}

export interface FootnoteRefToken {
  readonly type: "footnote-ref";
  readonly raw: string;
  readonly label: string;
}

const MAX_MATH_CHARS = 4000;
/** Stands before the end that a formula gets while it is being written. */
const MISSING_END = "\u2060";

const DISPLAY = /^ {0,3}(?:\$\$([\s\S]+?)\$\$|\\\[([\s\S]+?)\\\])[ \t]*(?=\n|$)\n*/;
const BRACKETS = /^\\\(((?:[^\\\n]|\\[^)]|\n(?!\s*\n))+?)\\\)/;
const INLINE_DISPLAY = /^(?:\$\$([^$\n]+?)\$\$|\\\[([^\n]+?)\\\])/;
/** As pandoc reads it: no space inside of either dollar, and no letter or digit after the second one. */
const DOLLARS = /^\$(?![\s$])((?:[^$\n\\`]|\\[^\n])*?[^\s$\\])\$(?![\w$])/;
/** Two plain words in a row: a sentence that happens to stand between two dollars. */
const WORDS = /(?<![\\{\w])[a-z]{2,}\s+[a-z]{2,}(?![\w}])/i;

function math(raw: string, text: string, isDisplay: boolean): MathToken | undefined {
  if (text.length > MAX_MATH_CHARS || text.trim() === "") return undefined;
  const isOpen = text.endsWith(MISSING_END);
  return { type: "math", raw, text: (isOpen ? text.slice(0, -1) : text).trim(), isDisplay, isOpen };
}

function displayMath(src: string): MathToken | undefined {
  const found = DISPLAY.exec(src);
  return found === null ? undefined : math(found[0], found[1] ?? found[2] ?? "", true);
}

export function inlineMath(src: string): MathToken | undefined {
  // A longer one is no formula. Without the limit a text of many that never end takes minutes to read.
  const near = src.slice(0, MAX_MATH_CHARS + 4);
  const brackets = near.startsWith("\\(") && near.includes("\\)") ? BRACKETS.exec(near) : null;
  if (brackets !== null) return math(brackets[0], brackets[1] ?? "", false);
  const display = INLINE_DISPLAY.exec(near);
  if (display !== null) return math(display[0], display[1] ?? display[2] ?? "", true);
  const dollars = DOLLARS.exec(near);
  const text = dollars?.[1] ?? "";
  if (dollars === null || (!text.includes("\\") && WORDS.test(text))) return undefined;
  return math(dollars[0], text, false);
}

/** A dollar within a word opens nothing: US$5, a$b. */
const nextDollar = (src: string): number | undefined => {
  const at = src.search(/(?<![\w$\\])\$/);
  return at < 0 ? undefined : at;
};

const NOTE = /^\[\^([^\]\s]{1,40})\]:[ \t]*([^\n]*(?:\n(?: {2,}|\t)[^\n]+)*)(?:\n+|$)/;
const NOTE_REF = /^\[\^([^\]\s]{1,40})\](?!:)/;

function footnote(this: TokenizerThis, src: string): FootnoteToken | undefined {
  const found = NOTE.exec(src);
  if (found === null) return undefined;
  const text = (found[2] ?? "").replaceAll(/\n\s+/g, " ");
  return { type: "footnote", raw: found[0], label: found[1] ?? "", tokens: this.lexer.inlineTokens(text) };
}

function footnoteRef(src: string): FootnoteRefToken | undefined {
  const found = NOTE_REF.exec(src);
  return found === null ? undefined : { type: "footnote-ref", raw: found[0], label: found[1] ?? "" };
}

const nextBlock = (src: string): number | undefined => {
  const found = /\n(?= {0,3}(?:\$\$|\\\[)|\[\^[^\]\s]{1,40}\]:)/.exec(src);
  return found === null ? undefined : found.index + 1;
};

/** How marked reads them, besides what it knows. */
export const NOTATION: NonNullable<MarkedOptions["extensions"]> = {
  renderers: {},
  childTokens: {},
  block: [(src) => displayMath(src), footnote],
  inline: [(src) => inlineMath(src), (src) => footnoteRef(src)],
  startBlock: [nextBlock],
  startInline: [nextDollar],
};

/** Ends a formula on lines of its own that is being written, so that nothing in it is read as markdown. */
export function closeMath(text: string): string {
  const starts = [...text.matchAll(/(?:^|\n) {0,3}(\$\$|\\\[)/g)];
  const last = starts.at(-1);
  if (last === undefined) return text;
  const open = last[1] ?? "";
  const end = open === "$$" ? "$$" : "\\]";
  const from = last.index + last[0].length;
  // Every other line that begins with two dollars ends a formula.
  const isEnd = open === "$$" && starts.filter((one) => one[1] === "$$").length % 2 === 0;
  if (isEnd || text.includes(end, from)) return text;
  return `${text}${MISSING_END}${end}`;
}

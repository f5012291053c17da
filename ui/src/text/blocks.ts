/** Markdown as a list of top-level blocks. While text streams, only its end is read again. */
import { Lexer, type Token } from "marked";
import type { RemendOptions } from "remend";
import { closeMath, NOTATION } from "./notation";

interface Block {
  readonly token: Token;
  /** Two blocks with the same text look the same. */
  readonly raw: string;
}

/** Beyond this nothing is worth the time that reading it takes; the rest is plain text. */
const MAX_MARKDOWN_CHARS = 400_000;

/** Marked looks for formulas and footnotes in the rest of the text after each paragraph: only where there may be some. */
function lex(text: string): readonly Token[] {
  return new Lexer(/\$|\\[([]|\[\^/.test(text) ? { gfm: true, extensions: NOTATION } : { gfm: true }).lex(text);
}

export function readBlocks(text: string): readonly Block[] {
  if (text.length > MAX_MARKDOWN_CHARS) return [plain(text)];
  try {
    return lex(text)
      .filter((token) => token.type !== "space" && token.type !== "def")
      .map((token) => ({ token, raw: token.raw }));
  } catch {
    // Text that is nested thousands deep: it is shown as it is.
    return [plain(text)];
  }
}

function plain(text: string): Block {
  return { raw: text, token: { type: "html", raw: text, text, pre: false, block: true } };
}

/** Reads a text that grows at its end. */
export class BlockReader {
  private text = "";
  private settled: Block[] = [];
  private settledChars = 0;

  read(text: string): readonly Block[] {
    if (!text.startsWith(this.text)) this.reset();
    this.text = text;
    const tail = text.slice(this.settledChars);
    this.settle(tail);
    return [...this.settled, ...readBlocks(complete(text.slice(this.settledChars)))];
  }

  /** All but the last two blocks can no longer change. */
  private settle(tail: string): void {
    const tokens = lexTail(tail);
    const ends = tokens.filter((token) => token.type !== "space").length - 2;
    let count = 0;
    for (const token of tokens) {
      if (count >= ends) break;
      this.settledChars += token.raw.length;
      if (token.type === "space") continue;
      count += 1;
      if (token.type !== "def") this.settled.push({ token, raw: token.raw });
    }
  }

  private reset(): void {
    this.settled = [];
    this.settledChars = 0;
  }
}

function lexTail(tail: string): readonly Token[] {
  try {
    const tokens = lex(tail);
    // Line endings and tabs may have been normalized: then raw texts do not add up, and nothing settles.
    const length = tokens.reduce((sum, token) => sum + token.raw.length, 0);
    return length === tail.length ? tokens : [];
  } catch {
    return [];
  }
}

let mend: ((text: string, options: RemendOptions) => string) | null = null;

/** Only a text that is being written needs it: its first words wait for nothing. */
export async function loadMending(): Promise<void> {
  mend ??= (await import("remend")).default;
}

/** Closes what the model has opened and not closed yet. */
function complete(text: string): string {
  if (mend === null) {
    void loadMending().catch(() => undefined);
    return text;
  }
  try {
    const closed = closeMath(text);
    if (closed !== text) return closed;
    return mend(text, { linkMode: "text-only", htmlTags: false, katex: false, comparisonOperators: false });
  } catch {
    return text;
  }
}

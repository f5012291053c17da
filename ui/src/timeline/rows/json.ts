/** Reads JSON of models and tools, whose shape nothing guarantees, and JSON that is not complete yet. */

export type JsonObject = Readonly<Record<string, unknown>>;

export function asObject(value: unknown): JsonObject | null {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as JsonObject) : null;
}

export function textOf(value: JsonObject | null, key: string): string {
  const found = value?.[key];
  return typeof found === "string" ? found : "";
}

export function numberOf(value: JsonObject | null, key: string): number | null {
  const found = value?.[key];
  return typeof found === "number" && Number.isFinite(found) ? found : null;
}

export function listOf(value: JsonObject | null, key: string): readonly unknown[] {
  const found = value?.[key];
  return Array.isArray(found) ? (found as readonly unknown[]) : [];
}

/** The texts of a list; empty if it has anything else. */
export function textsOf(value: JsonObject | null, key: string): readonly string[] {
  const found = listOf(value, key);
  return found.every((one) => typeof one === "string") ? found : [];
}

export function objectsOf(value: JsonObject | null, key: string): readonly JsonObject[] {
  return listOf(value, key)
    .map(asObject)
    .filter((item) => item !== null);
}

/** What is known so far of a JSON text that is still being written. Undefined: nothing yet. */
export function parsePartialJson(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return new PartialReader(text).read();
  }
}

const MAX_DEPTH = 64;
const END = Symbol("the text ends here");

class PartialReader {
  private at = 0;
  private depth = 0;

  constructor(private readonly text: string) {}

  read(): unknown {
    const value = this.value();
    return value === END ? undefined : value;
  }

  private value(): unknown {
    this.skipSpace();
    const char = this.text[this.at];
    if (char === undefined) return END;
    if (char === '"') return this.string();
    if (char !== "{" && char !== "[") return this.literal();
    if (this.depth >= MAX_DEPTH) return END;
    this.depth += 1;
    const value = char === "{" ? this.object() : this.array();
    this.depth -= 1;
    return value;
  }

  private object(): JsonObject {
    // Without a prototype: a key "__proto__" is a key like any other.
    const value = Object.create(null) as Record<string, unknown>;
    this.at += 1;
    while (this.next("}")) {
      if (this.text[this.at] !== '"') break;
      const start = this.at;
      const key = this.string();
      if (!this.isClosed(start)) break;
      this.skipSpace();
      if (this.text[this.at] !== ":") break;
      this.at += 1;
      const item = this.value();
      if (item === END) break;
      value[key] = item;
    }
    return value;
  }

  private array(): readonly unknown[] {
    const value: unknown[] = [];
    this.at += 1;
    while (this.next("]")) {
      const item = this.value();
      if (item === END) break;
      value.push(item);
    }
    return value;
  }

  /** True if an item follows. Steps over the comma, or over `close`. */
  private next(close: string): boolean {
    this.skipSpace();
    if (this.text[this.at] === ",") {
      this.at += 1;
      this.skipSpace();
    }
    if (this.text[this.at] !== close) return this.at < this.text.length;
    this.at += 1;
    return false;
  }

  private string(): string {
    const start = this.at + 1;
    let end = start;
    while (end < this.text.length && this.text[end] !== '"') end += this.text[end] === "\\" ? 2 : 1;
    this.at = Math.min(end + 1, this.text.length);
    const inner = this.text.slice(start, Math.min(end, this.text.length));
    // An escape that is cut in two is left out until the rest of it is there.
    const whole = inner.replace(/\\(?:u[0-9a-fA-F]{0,3})?$/, (cut, at: number) => (isEscaped(inner, at) ? cut : ""));
    try {
      return JSON.parse(`"${whole.replace(/[\n\r\t]/g, escapeControl)}"`) as string;
    } catch {
      return whole;
    }
  }

  private isClosed(start: number): boolean {
    return this.at - 1 > start && this.text[this.at - 1] === '"';
  }

  private literal(): unknown {
    const found = /^[^\s,\]}]+/.exec(this.text.slice(this.at, this.at + 64));
    if (found === null) return END;
    this.at += found[0].length;
    try {
      // A number at the end of the text may get more digits: it is not shown before it is complete.
      return this.at >= this.text.length ? END : (JSON.parse(found[0]) as unknown);
    } catch {
      return END;
    }
  }

  private skipSpace(): void {
    while (/\s/.test(this.text[this.at] ?? "")) this.at += 1;
  }
}

function isEscaped(text: string, at: number): boolean {
  let slashes = 0;
  while (text[at - 1 - slashes] === "\\") slashes += 1;
  return slashes % 2 === 1;
}

function escapeControl(char: string): string {
  return char === "\n" ? "\\n" : char === "\r" ? "\\r" : "\\t";
}

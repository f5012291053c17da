/**
 * Reads JSON that is still being written, such as the arguments of a tool call while the model
 * streams them. Text that grows is read once: each call goes on where the last one ended. Values
 * that are complete keep their reference; open ones are copied, so that a change can be noticed.
 */
export interface PartialJson {
  /** What is known so far; undefined before the first value. An open string has its beginning. */
  readonly value: unknown;
  readonly isComplete: boolean;
  /** False if the text cannot become JSON; the value then stays as it was. */
  readonly isValid: boolean;
}

type Container = unknown[] | Record<string, unknown>;
type Expected = "value" | "value-or-end" | "key" | "key-or-end" | "colon" | "comma-or-end" | "nothing";

interface Open {
  container: Container;
  /** Of an object: the key whose value comes next. */
  key: string;
}

interface Token {
  readonly kind: "string" | "key" | "literal";
  text: string;
  /** Of a string: the escape sequence that has begun, with its backslash. */
  escape: string;
}

const SPACE = " \t\n\r";
const LITERALS: Readonly<Record<string, unknown>> = { true: true, false: false, null: null };
const NUMBER = /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/;
const NUMBER_START = /^-?(0|[1-9]\d*)?(\.\d*)?([eE][+-]?\d*)?$/;
const ESCAPES: Readonly<Record<string, string>> = {
  '"': '"',
  "\\": "\\",
  "/": "/",
  b: "\b",
  f: "\f",
  n: "\n",
  r: "\r",
  t: "\t",
};

export class PartialJsonReader {
  #text = "";
  #root: unknown = undefined;
  #stack: Open[] = [];
  #expected: Expected = "value";
  #token: Token | null = null;
  #isValid = true;
  /** The open token's beginning is in its container. */
  #isShown = false;

  /** `text` is all of it, from its first character. */
  read(text: string): PartialJson {
    if (!text.startsWith(this.#text)) this.#restart();
    const from = this.#text.length;
    this.#text = text;
    if (this.#isValid && text.length > from) {
      this.#copyOpen();
      this.#consume(text, from);
      this.#showToken();
    }
    const isComplete = this.#isValid && this.#expected === "nothing" && this.#token === null;
    return { value: this.#root, isComplete, isValid: this.#isValid };
  }

  #restart(): void {
    this.#text = "";
    this.#root = undefined;
    this.#stack = [];
    this.#expected = "value";
    this.#token = null;
    this.#isValid = true;
    this.#isShown = false;
  }

  #copyOpen(): void {
    this.#stack.forEach((open, depth) => {
      open.container = Array.isArray(open.container) ? [...open.container] : { ...open.container };
      const parent = this.#stack[depth - 1];
      if (parent === undefined) this.#root = open.container;
      else put(parent, open.container, true);
    });
  }

  #consume(text: string, from: number): void {
    let at = from;
    while (at < text.length && this.#isValid) {
      if (this.#token === null) {
        this.#start(text[at] ?? "");
        at += 1;
      } else if (this.#token.kind === "literal") {
        at = this.#literal(this.#token, text, at);
      } else {
        at = this.#string(this.#token, text, at);
      }
    }
  }

  /** A character outside of strings, numbers and words. */
  #start(char: string): void {
    if (SPACE.includes(char)) return;
    const isValueExpected = this.#expected === "value" || this.#expected === "value-or-end";
    const isKeyExpected = this.#expected === "key" || this.#expected === "key-or-end";
    if (char === '"' && (isValueExpected || isKeyExpected)) {
      this.#token = { kind: isKeyExpected ? "key" : "string", text: "", escape: "" };
    } else if ((char === "{" || char === "[") && isValueExpected) {
      this.#open(char === "{" ? {} : []);
    } else if (char === "}" || char === "]") {
      this.#close(char === "]");
    } else if (char === ":" && this.#expected === "colon") {
      this.#expected = "value";
    } else if (char === "," && this.#expected === "comma-or-end" && this.#stack.length > 0) {
      this.#expected = Array.isArray(this.#stack.at(-1)?.container) ? "value" : "key";
    } else if (isValueExpected && /[-\dtfn]/.test(char)) {
      this.#token = { kind: "literal", text: char, escape: "" };
    } else {
      this.#isValid = false;
    }
  }

  #open(container: Container): void {
    this.#put(container);
    this.#stack.push({ container, key: "" });
    this.#expected = Array.isArray(container) ? "value-or-end" : "key-or-end";
  }

  #close(isArray: boolean): void {
    const open = this.#stack.at(-1);
    const mayEnd = ["comma-or-end", "value-or-end", "key-or-end"].includes(this.#expected);
    if (open === undefined || !mayEnd || Array.isArray(open.container) !== isArray) {
      this.#isValid = false;
      return;
    }
    this.#stack.pop();
    this.#afterValue();
  }

  #afterValue(): void {
    this.#expected = this.#stack.length === 0 ? "nothing" : "comma-or-end";
  }

  #string(token: Token, text: string, from: number): number {
    if (token.escape !== "") {
      this.#escaped(token, text[from] ?? "");
      return from + 1;
    }
    let at = from;
    while (at < text.length && text[at] !== '"' && text[at] !== "\\") at += 1;
    token.text += text.slice(from, at);
    if (at === text.length) return at;
    if (text[at] === "\\") token.escape = "\\";
    else this.#endString(token);
    return at + 1;
  }

  #escaped(token: Token, char: string): void {
    token.escape += char;
    if (token.escape[1] === "u") {
      if (token.escape.length > 2 && !/[\da-fA-F]/.test(char)) this.#isValid = false;
      else if (token.escape.length === 6) this.#endEscape(token, String.fromCharCode(parseInt(token.escape.slice(2), 16)));
      return;
    }
    const meant = ESCAPES[char];
    if (meant === undefined) this.#isValid = false;
    else this.#endEscape(token, meant);
  }

  #endEscape(token: Token, meant: string): void {
    token.text += meant;
    token.escape = "";
  }

  #endString(token: Token): void {
    this.#token = null;
    if (token.kind === "string") {
      this.#put(token.text);
      this.#afterValue();
      return;
    }
    const open = this.#stack.at(-1);
    if (open !== undefined) open.key = token.text;
    this.#expected = "colon";
  }

  #literal(token: Token, text: string, from: number): number {
    let at = from;
    while (at < text.length && /[-+.\w]/.test(text[at] ?? "")) at += 1;
    token.text += text.slice(from, at);
    if (at === text.length) {
      this.#isValid = this.#mayContinue(token.text) || isLiteral(token.text);
      return at;
    }
    if (!isLiteral(token.text)) {
      this.#isValid = false;
      return at;
    }
    this.#token = null;
    this.#put(literalValue(token.text));
    this.#afterValue();
    return at;
  }

  #mayContinue(text: string): boolean {
    return NUMBER_START.test(text) || Object.keys(LITERALS).some((word) => word.startsWith(text));
  }

  /** The beginning of an open string. A number may still change, and is shown when it is complete. */
  #showToken(): void {
    const token = this.#token;
    if (token?.kind === "string") this.#put(token.text, true);
    else if (token?.kind === "literal" && this.#stack.length === 0) {
      this.#root = isLiteral(token.text) ? literalValue(token.text) : undefined;
    }
  }

  #put(value: unknown, isOpen = false): void {
    const parent = this.#stack.at(-1);
    if (parent === undefined) this.#root = value;
    else put(parent, value, this.#isShown);
    this.#isShown = isOpen;
  }
}

/** Arrays get the value as their last one: in place of its beginning, or after the others. */
function put(open: Open, value: unknown, replacesLast: boolean): void {
  const { container } = open;
  if (Array.isArray(container)) {
    if (replacesLast && container.length > 0) container[container.length - 1] = value;
    else container.push(value);
    return;
  }
  Object.defineProperty(container, open.key, { value, enumerable: true, configurable: true, writable: true });
}

function isLiteral(text: string): boolean {
  return Object.hasOwn(LITERALS, text) || NUMBER.test(text);
}

function literalValue(text: string): unknown {
  return Object.hasOwn(LITERALS, text) ? LITERALS[text] : Number(text);
}

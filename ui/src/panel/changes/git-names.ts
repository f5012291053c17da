const ESCAPES: Readonly<Record<string, number>> = { a: 7, b: 8, t: 9, n: 10, v: 11, f: 12, r: 13, '"': 34, "\\": 92 };

/** A name as git prints it: in quotes, with bytes above ASCII as octal numbers, if it has unusual characters. */
export function unquoteName(name: string): string {
  if (name.length < 2 || !name.startsWith('"') || !name.endsWith('"')) return name;
  const bytes: number[] = [];
  const encoder = new TextEncoder();
  for (const [token] of name.slice(1, -1).matchAll(/\\[0-7]{1,3}|\\.|[^\\]+/gsu)) {
    if (/^\\[0-7]/.test(token)) bytes.push(Number.parseInt(token.slice(1), 8) & 0xff);
    else if (token.startsWith("\\")) bytes.push(ESCAPES[token.slice(1)] ?? token.charCodeAt(1));
    else bytes.push(...encoder.encode(token));
  }
  return new TextDecoder().decode(new Uint8Array(bytes));
}

/** Amounts are micros of a dollar: 1,000,000 is one dollar. */
export const MICROS = 1_000_000;

/** "$12.40"; below a cent as many digits as it takes to see something: "$0.0004". */
export function moneyText(micros: number): string {
  const dollars = micros / MICROS;
  if (micros === 0) return "$0.00";
  if (Math.abs(dollars) >= 0.01) return dollars.toLocaleString("en-US", { style: "currency", currency: "USD" });
  return `$${dollars.toPrecision(1)}`.replace(/e-\d+$/, "");
}

/** Micros of what was typed, such as "10" or "$10.50". Null: it is not an amount above zero. */
export function readMoney(text: string): number | null {
  const plain = text.trim().replace(/^\$/, "").replaceAll(",", "");
  if (!/^\d{1,9}(\.\d{1,6})?$/.test(plain)) return null;
  const micros = Math.round(Number(plain) * MICROS);
  return micros > 0 ? micros : null;
}

/** "412 M", "18,204". */
export function countText(count: number): string {
  if (count >= 1e9) return `${(count / 1e9).toFixed(1)} G`;
  if (count >= 1e7) return `${Math.round(count / 1e6)} M`;
  if (count >= 1e6) return `${(count / 1e6).toFixed(1)} M`;
  return count.toLocaleString("en-US");
}

/** "200k", "1M". */
export function tokensText(tokens: number | null | undefined): string {
  if (tokens === null || tokens === undefined) return "";
  if (tokens >= 1e6) return `${trim(tokens / 1e6)}M`;
  if (tokens >= 1000) return `${trim(tokens / 1000)}k`;
  return String(tokens);
}

const trim = (value: number): string => String(Math.round(value * 10) / 10);

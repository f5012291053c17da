/** Words for numbers, moments, durations and amounts of money. Pure, so that they can be tested without a clock. */

const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** "0.8 s", "41 s", "2 m 14 s", "1 h 5 m", "3 d". */
export function durationText(milliseconds: number): string {
  const ms = Math.max(0, milliseconds);
  if (ms < 10 * SECOND) return `${(ms / SECOND).toFixed(1)} s`;
  if (ms < MINUTE) return `${Math.floor(ms / SECOND)} s`;
  if (ms < HOUR) {
    const seconds = Math.floor((ms % MINUTE) / SECOND);
    return seconds === 0 ? `${Math.floor(ms / MINUTE)} m` : `${Math.floor(ms / MINUTE)} m ${seconds} s`;
  }
  if (ms < DAY) {
    const minutes = Math.floor((ms % HOUR) / MINUTE);
    return minutes === 0 ? `${Math.floor(ms / HOUR)} h` : `${Math.floor(ms / HOUR)} h ${minutes} m`;
  }
  return `${Math.floor(ms / DAY)} d`;
}

const startOfDay = (moment: Date): number => new Date(moment.getFullYear(), moment.getMonth(), moment.getDate()).getTime();

/** Whole days of the calendar between two moments; DST days count as one. */
export function daysBetween(earlier: Date, later: Date): number {
  return Math.round((startOfDay(later) - startOfDay(earlier)) / DAY);
}

/** How a list says when: "now", "4 m", "2 h", "Mon", "3 Mar", "3 Mar 2025"; of what will be: "in 4 m", "in 2 h", "3 Mar". */
export function relativeText(moment: Date, now: Date): string {
  const age = now.getTime() - moment.getTime();
  if (age <= -12 * HOUR) return dateText(moment, now);
  if (age <= -HOUR) return `in ${Math.floor(-age / HOUR)} h`;
  if (age <= -MINUTE) return `in ${Math.floor(-age / MINUTE)} m`;
  if (age < MINUTE) return "now";
  if (age < HOUR) return `${Math.floor(age / MINUTE)} m`;
  if (age < 12 * HOUR || daysBetween(moment, now) === 0) return `${Math.floor(age / HOUR)} h`;
  if (daysBetween(moment, now) < 7) return moment.toLocaleDateString("en", { weekday: "short" });
  return dateText(moment, now);
}

function dateText(moment: Date, now: Date): string {
  const sameYear = moment.getFullYear() === now.getFullYear();
  return moment.toLocaleDateString("en-GB", { day: "numeric", month: "short", ...(sameYear ? {} : { year: "numeric" }) });
}

/** The whole moment, for a title. */
export const fullText = (moment: Date): string => moment.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });

/** Amounts are micros of a dollar: 1,000,000 is one dollar. */
export const MICROS = 1_000_000;

/** "$12.40"; below a cent as many digits as it takes to see something: "$0.0004". */
export function moneyText(micros: number): string {
  const dollars = micros / MICROS;
  if (micros === 0) return "$0.00";
  if (Math.abs(dollars) >= 0.01) return dollars.toLocaleString("en-US", { style: "currency", currency: "USD" });
  return `$${dollars.toPrecision(1)}`.replace(/e-\d+$/, "");
}

/** The same, without cents where there are none: "$10". */
export function shortMoneyText(micros: number): string {
  return moneyText(micros).replace(/\.00$/, "");
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

/** "1 file", "1,204 files". The one place that knows how a noun is counted. */
export const plural = (count: number, one: string, many = `${one}s`): string => `${count.toLocaleString("en")} ${count === 1 ? one : many}`;

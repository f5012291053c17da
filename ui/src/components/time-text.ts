/** Words for moments and durations. Pure, so that they can be tested without a clock. */

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

/** How a list says when: "now", "4 m", "2 h", "Mon", "3 Mar", "3 Mar 2025". */
export function relativeText(moment: Date, now: Date): string {
  const age = now.getTime() - moment.getTime();
  if (age < MINUTE) return "now";
  if (age < HOUR) return `${Math.floor(age / MINUTE)} m`;
  if (age < 12 * HOUR || daysBetween(moment, now) === 0) return `${Math.floor(age / HOUR)} h`;
  if (daysBetween(moment, now) < 7) return moment.toLocaleDateString("en", { weekday: "short" });
  const sameYear = moment.getFullYear() === now.getFullYear();
  return moment.toLocaleDateString("en-GB", { day: "numeric", month: "short", ...(sameYear ? {} : { year: "numeric" }) });
}

/** The whole moment, for a title. */
export const fullText = (moment: Date): string =>
  moment.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });

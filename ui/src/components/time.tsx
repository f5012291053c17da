import { useSyncExternalStore } from "react";
import { durationText, fullText, relativeText } from "@/platform/words";

type Listener = () => void;

/** One clock for all times on the page, that ticks only while somebody looks at it. */
class Ticker {
  private readonly listeners = new Set<Listener>();
  private timer: ReturnType<typeof setInterval> | null = null;
  private now = Date.now();

  constructor(private readonly period: number) {}

  subscribe = (listener: Listener): Listener => {
    this.listeners.add(listener);
    this.timer ??= setInterval(this.tick, this.period);
    return () => {
      this.listeners.delete(listener);
      if (this.listeners.size === 0 && this.timer !== null) {
        clearInterval(this.timer);
        this.timer = null;
      }
    };
  };

  read = (): number => {
    if (this.timer === null) this.now = Math.floor(Date.now() / this.period) * this.period;
    return this.now;
  };

  private readonly tick = () => {
    this.now = Date.now();
    for (const listener of this.listeners) listener();
  };
}

const seconds = new Ticker(1000);
const minutes = new Ticker(30_000);

/** The present moment in milliseconds, renewed each second (or each half minute). */
export function useNow(each: "second" | "minute" = "second"): number {
  const ticker = each === "second" ? seconds : minutes;
  return useSyncExternalStore(ticker.subscribe, ticker.read);
}

/** When something was, as lists say it; the whole moment is its title. A past moment that a wrong clock shows as later is "now". */
export function Time({ at, isFuture = false }: { at: string | Date; isFuture?: boolean }) {
  const now = useNow("minute");
  const moment = typeof at === "string" ? new Date(at) : at;
  return (
    <time dateTime={moment.toISOString()} title={fullText(moment)} className="ui-number">
      {relativeText(moment, new Date(isFuture ? now : Math.max(now, moment.getTime())))}
    </time>
  );
}

/** How long something has been going on, renewed each second. */
export function Elapsed({ since }: { since: string | Date | number }) {
  const now = useNow();
  const start = new Date(since).getTime();
  const age = Math.max(0, now - start);
  return <span className="ui-number">{durationText(age < 10_000 ? Math.floor(age / 1000) * 1000 : age).replace(".0 s", " s")}</span>;
}

/** How long until something happens, renewed each second. */
export function Countdown({ until }: { until: string | Date | number }) {
  const now = useNow();
  const left = Math.max(0, new Date(until).getTime() - now);
  return <span className="ui-number">{durationText(Math.max(1000, Math.ceil(left / 1000) * 1000)).replace(".0 s", " s")}</span>;
}

/** What the main thread of a page does, in time of the thread: a busy machine makes it no longer. */
import type { Browser, Page } from "@playwright/test";

interface TraceEvent {
  readonly name: string;
  readonly pid: number;
  readonly tid: number;
  /** Microseconds of the thread. */
  readonly tdur?: number;
  readonly args: { readonly name?: string; readonly data?: { readonly frames?: readonly { readonly processId?: number; readonly url?: string }[] } };
}

/** Milliseconds of the thread. */
export interface ThreadWork {
  readonly total: number;
  readonly longest: number;
}

const CATEGORIES = ["__metadata", "disabled-by-default-devtools.timeline", "devtools.timeline"];

/** The tasks of the page's main thread while `work` goes on. */
export async function measureThread(browser: Browser, page: Page, work: () => Promise<void>): Promise<ThreadWork> {
  await browser.startTracing(page, { categories: CATEGORIES });
  await work();
  const trace = JSON.parse((await browser.stopTracing()).toString()) as { traceEvents: TraceEvent[] };
  const events = trace.traceEvents;
  const pid = events
    .filter((event) => event.name === "TracingStartedInBrowser")
    .flatMap((event) => event.args.data?.frames ?? [])
    .find((frame) => frame.url === page.url())?.processId;
  const thread = events.find((event) => event.pid === pid && event.name === "thread_name" && event.args.name === "CrRendererMain");
  if (thread === undefined) throw new Error("The trace does not tell the main thread of the page.");
  const own = events.filter((event) => event.pid === pid && event.tid === thread.tid && event.name === "RunTask");
  const tasks = own.flatMap((event) => (event.tdur === undefined ? [] : [event.tdur / 1000]));
  if (tasks.length === 0) throw new Error("The trace has no tasks with time of the thread.");
  return { total: tasks.reduce((sum, one) => sum + one, 0), longest: Math.max(...tasks) };
}

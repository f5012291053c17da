/** The log of a build, followed until the build has ended. */
import { useEffect, useState } from "react";
import { ApiError, localError, readError } from "@/api/client";
import type { LogLine } from "./state";

export const MAX_LINES = 2000;
const FIRST_DELAY_MS = 1000;
const MAX_DELAY_MS = 15_000;

export interface BuildLog {
  readonly lines: readonly LogLine[];
  /** Lines of the beginning that were dropped. */
  readonly dropped: number;
  readonly isFollowing: boolean;
  readonly error: ApiError | null;
}

const EMPTY: BuildLog = { lines: [], dropped: 0, isFollowing: true, error: null };

/** `onEnd` is called when the server says that the build is over. */
export function useBuildLog(buildId: string, onEnd: () => void): BuildLog {
  const [log, setLog] = useState(EMPTY);
  useEffect(() => {
    const stop = new AbortController();
    void follow(buildId, stop.signal, setLog, onEnd);
    return () => stop.abort();
  }, [buildId, onEnd]);
  return log;
}

type Update = (change: (log: BuildLog) => BuildLog) => void;

async function follow(buildId: string, signal: AbortSignal, update: Update, onEnd: () => void): Promise<void> {
  const reading = { lastId: null as string | null, hasEnded: false, delay: FIRST_DELAY_MS };
  const take = (event: StreamEvent) => {
    reading.delay = FIRST_DELAY_MS;
    reading.lastId = event.id ?? reading.lastId;
    if (event.event === "build") reading.hasEnded = true;
    // Other names say why the stream ends.
    if (event.event === "message") update((log) => withLine(log, JSON.parse(event.data) as LogLine));
  };
  for (;;) {
    const refused = await readOnce(buildId, reading.lastId, signal, take);
    if (refused !== null) {
      update((log) => ({ ...log, isFollowing: false, error: refused }));
      return;
    }
    if (signal.aborted || reading.hasEnded) break;
    await pause(reading.delay, signal);
    reading.delay = Math.min(reading.delay * 2, MAX_DELAY_MS);
  }
  if (signal.aborted) return;
  update((log) => ({ ...log, isFollowing: false }));
  onEnd();
}

/** Null: the stream ended, or it may work later. */
async function readOnce(buildId: string, lastId: string | null, signal: AbortSignal, take: (event: StreamEvent) => void): Promise<ApiError | null> {
  try {
    await readEvents(`/api/v1/builds/${encodeURIComponent(buildId)}/logs?follow=true`, lastId, signal, take);
  } catch (error) {
    if (!signal.aborted && error instanceof ApiError && !error.isTemporary) return error;
  }
  return null;
}

export function withLine(log: BuildLog, line: LogLine): BuildLog {
  if (log.lines.some((one) => one.id === line.id)) return log;
  const lines = [...log.lines, line];
  const over = Math.max(0, lines.length - MAX_LINES);
  return { ...log, lines: lines.slice(over), dropped: log.dropped + over };
}

function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    });
  });
}

// Reads a stream of server-sent events by `fetch`, so that a refusal has its code.

interface StreamEvent {
  readonly event: string;
  readonly data: string;
  readonly id: string | null;
}

/** Takes text in pieces of any size and gives the events that are complete. Pure but for its rest. */
export class EventReader {
  private rest = "";

  push(piece: string): readonly StreamEvent[] {
    const blocks = (this.rest + piece).replaceAll("\r\n", "\n").split("\n\n");
    this.rest = blocks.pop() ?? "";
    return blocks.flatMap(readBlock);
  }
}

function readBlock(block: string): readonly StreamEvent[] {
  let event = "message";
  let id: string | null = null;
  const data: string[] = [];
  for (const line of block.split("\n")) {
    const [, name, value = ""] = /^([^:]+)(?:: ?(.*))?$/.exec(line) ?? [];
    if (name === "event") event = value;
    else if (name === "id") id = value;
    else if (name === "data") data.push(value);
  }
  return data.length === 0 ? [] : [{ event, data: data.join("\n"), id }];
}

/** Until the server ends the stream or `signal` aborts it. Throws `ApiError`. */
async function readEvents(path: string, lastId: string | null, signal: AbortSignal, onEvent: (event: StreamEvent) => void): Promise<void> {
  const headers = { Accept: "text/event-stream", ...(lastId === null ? {} : { "Last-Event-ID": lastId }) };
  try {
    const reply = await fetch(path, { headers, credentials: "same-origin", signal });
    if (!reply.ok) throw await readError(reply);
    const events = new EventReader();
    const text = reply.body?.pipeThrough(new TextDecoderStream()).getReader();
    for (let piece = await text?.read(); piece?.done === false; piece = await text?.read()) {
      for (const event of events.push(piece.value)) onEvent(event);
    }
  } catch (error) {
    if (error instanceof ApiError || signal.aborted) throw error;
    throw localError("network");
  }
}

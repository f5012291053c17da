/** Reads a stream of server-sent events by `fetch`, so that a refusal has its code. */
import { ApiError, localError, readError } from "@/api/errors";

export interface StreamEvent {
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
export async function readEvents(path: string, lastId: string | null, signal: AbortSignal, onEvent: (event: StreamEvent) => void): Promise<void> {
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

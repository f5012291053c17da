/** A row in a few words: for the card of a parent, for screen readers, for names of rows. */
import { callName, clip, humanize, readsName, stateWord } from "./call-view";
import { asObject, textOf } from "./json";
import type { Row } from "./row";

export interface Brief {
  readonly key: string;
  readonly text: string;
  readonly isGoing: boolean;
}

/** What the agent did or does; null for rows that are no step of its work. It does not change with each word of a live row. */
export function stepOf(row: Row): Brief | null {
  switch (row.kind) {
    case "tool": {
      const { state } = row.call;
      return {
        key: row.key,
        text: state === "streaming" ? humanize(row.call.name) : callName(row.call),
        isGoing: state === "running" || state === "streaming",
      };
    }
    case "reads":
      return { key: row.key, text: readsName(row.calls), isGoing: false };
    case "prose":
      return { key: row.key, text: row.isLive ? "Writing" : clip(row.text), isGoing: row.isLive };
    case "reasoning":
      return { key: row.key, text: row.isLive ? "Thinking" : (row.title ?? "Thought"), isGoing: row.isLive };
    default:
      return null;
  }
}

/** The name of a row for screen readers. */
export function nameOf(row: Row): string {
  switch (row.kind) {
    case "user":
      return row.pending === null ? "You" : "You, on its way";
    case "prose":
      return "Agent";
    case "reasoning":
      return row.title === null ? "Thought" : `Thought: ${row.title}`;
    case "tool":
      return `${callName(row.call)}, ${stateWord(row.call)}`;
    case "reads":
      return readsName(row.calls);
    case "sources":
      return "Sources";
    case "files":
      return "Files";
    case "mark":
      return "Note";
    case "note":
      return "How the answer ended";
    case "callout":
      return row.callout.type === "failed" ? "Failed" : row.callout.type === "held" ? "Held" : "Retrying";
    case "activity":
      return "Status";
  }
}

// What is copied when a row is copied.

export function textOfRow(row: Row): string {
  switch (row.kind) {
    case "user":
    case "prose":
    case "reasoning":
      return row.text;
    case "tool":
      return textOf(row.call.args, "command") || textOf(asObject(row.call.result), "output") || JSON.stringify(row.call.args ?? {}, null, 2);
    case "reads":
      return row.calls.map((call) => textOf(call.args, "path")).join("\n");
    case "sources":
      return row.sources.map((source) => source.url).join("\n");
    case "mark":
      if (row.mark.type === "notice") return row.mark.text;
      return row.mark.type === "compacted" ? row.mark.summary : "";
    case "callout":
      if (row.callout.type === "waits") return row.callout.text;
      return row.callout.type === "retrying" ? row.callout.retry.error : row.callout.error.message;
    default:
      return "";
  }
}

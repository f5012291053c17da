/** A row in a few words: for the card of a parent, for screen readers, for names of rows. */
import { asObject, textOf } from "./json";
import type { Row } from "./row";
import type { ToolCall } from "./tool-call";

export interface Brief {
  readonly key: string;
  readonly text: string;
  readonly isGoing: boolean;
}

const MAX_CHARS = 120;

/** What the agent did or does; null for rows that are no step of its work. It does not change with each word of a live row. */
export function stepOf(row: Row): Brief | null {
  switch (row.kind) {
    case "tool": {
      const { state } = row.call;
      return {
        key: row.key,
        text: state === "streaming" ? humanize(row.call.name) : callText(row.call),
        isGoing: state === "running" || state === "streaming",
      };
    }
    case "reads":
      return { key: row.key, text: row.calls.length === 1 ? `Read ${fileOf(row.calls[0])}` : `Read ${row.calls.length} files`, isGoing: false };
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
      return `${callText(row.call)}, ${stateWord(row.call)}`;
    case "reads":
      return row.calls.length === 1 ? `Read ${fileOf(row.calls[0])}` : `Read ${row.calls.length} files`;
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

export function callText(call: ToolCall): string {
  const subject = ["command", "path", "title", "query", "pattern", "name", "process_id"].map((key) => textOf(call.args, key)).find(Boolean);
  const files = asObject(call.args)?.files;
  const edited = Array.isArray(files) ? textOf(asObject(files[0]), "path") : "";
  return clip([humanize(call.name), subject ?? edited].filter(Boolean).join(" "));
}

function stateWord(call: ToolCall): string {
  if (call.state === "interrupted") return "stopped";
  return call.state === "streaming" || call.state === "running" ? "running" : call.state;
}

/** The MCP server of `github__create_issue`. A repository names its servers as it likes, so theirs say where they are of. */
export function serverOf(name: string): string {
  const [first = "", second = "", ...rest] = name.split("__");
  if (first === "workspace" && rest.length > 0) return `workspace: ${second}`;
  return second === "" ? "" : first;
}

/** `github__create_issue` is "Create issue". */
export function humanize(name: string): string {
  const own = name.split("__").at(-1) ?? name;
  const words = own
    .replace(/([a-z0-9])([A-Z])/g, "$1 $2")
    .replace(/[_\-.]+/g, " ")
    .trim()
    .toLowerCase();
  return words === "" ? name : words.charAt(0).toUpperCase() + words.slice(1);
}

function fileOf(call: ToolCall | undefined): string {
  return (
    textOf(call?.args ?? null, "path")
      .split("/")
      .at(-1) ?? ""
  );
}

function clip(text: string): string {
  const line = text.trim().split("\n")[0] ?? "";
  return line.length > MAX_CHARS ? `${line.slice(0, MAX_CHARS)}…` : line;
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
      return row.callout.type === "retrying" ? row.callout.retry.error : row.callout.error.message;
    default:
      return "";
  }
}

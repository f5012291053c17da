/** What is copied when a row is copied. */
import { asObject, textOf } from "./json";
import type { Row } from "./row";

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

/** A call that went well and only read is one quiet line. Everything else is a card. */
import type { ToolCall } from "./tool-call";

const READS = new Set(["read_file"]);
const CARDS = new Set([
  "write_file",
  "edit_files",
  "create_workspace",
  "start_workspace",
  "stop_workspace",
  "spawn_agent",
  "spawn_computer_use_agent",
  "propose_plan",
  "ask_user_question",
  "attach_file",
]);

export function isRead(call: ToolCall): boolean {
  return call.state === "done" && READS.has(call.name) && !call.isMedia;
}

export function isQuiet(call: ToolCall): boolean {
  return call.state === "done" && !CARDS.has(call.name) && !call.isMedia;
}

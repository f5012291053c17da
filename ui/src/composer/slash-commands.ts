/** Commands that begin with a slash. */
import type { SettledState } from "@/chat-state";

export type SlashName = "compact" | "fork" | "export" | "model" | "plan" | "stop" | "hold" | "new";

export interface SlashCommand {
  readonly name: SlashName;
  readonly effect: string;
  /** Why it cannot be used now; null: it can. */
  readonly reason: (state: SettledState | null) => string | null;
}

const inChat = (state: SettledState | null) => (state === null ? "Only in a chat" : null);
const whenIdle = (state: SettledState | null) =>
  inChat(state) ?? (state?.status === "waiting" || state?.status === "error" ? null : "Only while the chat waits");
const whenBusy = (state: SettledState | null) =>
  inChat(state) ?? (state?.status === "running" || state?.status === "pending" ? null : "Nothing is running");

export const SLASH_COMMANDS: readonly SlashCommand[] = [
  { name: "compact", effect: "Replace the history by a summary for the model", reason: whenIdle },
  { name: "fork", effect: "Copy this chat into a new one", reason: inChat },
  { name: "export", effect: "Save the chat as a file", reason: inChat },
  { name: "model", effect: "Choose model and effort", reason: () => null },
  { name: "plan", effect: "Plan mode on or off; with text: plan that, and change nothing else", reason: () => null },
  { name: "stop", effect: "Stop the answer, keep what was said", reason: whenBusy },
  { name: "hold", effect: "Stop the answer and hold the queue", reason: whenBusy },
  { name: "new", effect: "Start a new chat", reason: () => null },
];

/** The commands that fit what is typed; null: the text is no command. */
export function matchSlash(text: string): readonly SlashCommand[] | null {
  const typed = /^\/(\w*)$/.exec(text)?.[1];
  if (typed === undefined) return null;
  const found = SLASH_COMMANDS.filter((one) => one.name.startsWith(typed.toLowerCase()));
  return found.length === 0 ? null : found;
}

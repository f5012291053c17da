/** A chat of the list as the sidebar reads it: also fields that only newer servers send. */
import type { components } from "@/api/schema";
import { isLive, isWorking } from "@/chat-state/reducer";
import type { Status } from "@/components";

type Schemas = components["schemas"];

export type ListChat = Schemas["PublicChat"] & Partial<Pick<Schemas["ListedChat"], "children" | "match">> & Partial<NewerFields>;

/** Fields that a server of an earlier version does not send. */
interface NewerFields {
  last_turn_summary: string | null;
  /** What a chat that needs you asks for, and what a working one does. */
  action_summary: string | null;
  activity: string | null;
  diff_status: { additions: number; deletions: number } | null;
  shared: boolean;
  owner_username: string | null;
}

/** The server leaves fields out that have their default. */
export const isSubagent = (chat: ListChat): boolean => (chat.parent_chat_id ?? null) !== null;

/** Whether it has an answer for you. What a subagent says is for its parent. */
export const isUnread = (chat: ListChat): boolean => chat.has_unread === true && !isSubagent(chat);

/** The status that the icon shows. A subagent that waits has done its work. */
export function shownStatus(chat: ListChat): Status {
  if (chat.status === "archived") return "waiting";
  if (chat.status === "waiting" && isSubagent(chat)) return "done";
  if (isHeld(chat)) return "stopped";
  if (needsYou(chat)) return "requires_action";
  return isRetrying(chat) ? "retrying" : chat.status;
}

/** Between two calls of a failing model, with or without a worker. */
const isRetrying = (chat: ListChat): boolean => chat.retry != null && isWorking(chat.status);

/** The user stopped the turn and holds the queue: nothing failed. */
const isHeld = (chat: ListChat): boolean => chat.status === "error" && chat.last_error?.kind === "queue_held";

/** It asks something, or its plan waits for a decision. */
export const needsYou = (chat: ListChat): boolean => chat.status === "requires_action" || chat.plan_ready === true;

/** Whether it, or one of its subagents, waits for a person. */
export const familyNeedsYou = (chat: ListChat): boolean => needsYou(chat) || (chat.children ?? []).some(needsYou);

export const isActive = (chat: ListChat): boolean => isLive(chat.status);

/** The second line, first that applies: what it needs, why it failed, what it does now, last summary, model. */
export function subtitle(chat: ListChat, modelName: string | null): string | null {
  if (needsYou(chat)) return chat.action_summary ?? "Needs your answer";
  if ((chat.children ?? []).some(needsYou)) return "A subagent needs you";
  if (isHeld(chat)) return "Stopped by you, queue held";
  if (chat.status === "error") return chat.last_error?.message ?? "Failed";
  if (isRetrying(chat)) return `Retrying: ${chat.retry?.error ?? "the model failed"}`;
  if (chat.status === "pending") return "Waiting for a worker";
  if (chat.status === "interrupting") return "Stopping";
  if (chat.status === "running" && chat.waits_for != null) return `Waits: ${chat.waits_for}`;
  if (chat.status === "running") return chat.activity ?? (chat.queue_len > 0 ? `Working, ${chat.queue_len} queued` : "Working");
  return chat.last_turn_summary ?? modelName;
}

/** What an editor uses to find its session again says nothing to a person. */
const EDITOR_SESSION = "acp/session";
const EDITOR_DIRECTORY = "acp/cwd";

export const shownLabels = (chat: ListChat): [string, string][] => Object.entries(chat.labels).filter(([key]) => key !== EDITOR_SESSION);

/** Of a directory its own name. */
export function labelText(key: string, value: string): string {
  if (value === "") return key;
  return key === EDITOR_DIRECTORY ? (value.replace(/\/+$/, "").split("/").at(-1) ?? value) || value : value;
}

/** What rows can ask for. The timeline of a chat gives the real ones; a gallery gives others. */
import { createContext, useContext } from "react";
import { api, ApiError } from "@/api/client";
import type { components } from "@/api/schema";
import { newUuid } from "@/platform/plain-http";
import { toast } from "@/platform/toasts";

interface BuildLine {
  readonly id: number;
  readonly at: string;
  readonly level: "debug" | "info" | "warning" | "error";
  readonly text: string;
}

export interface BuildLog {
  readonly lines: readonly BuildLine[];
  readonly hasEnded: boolean;
}

export type CallAnswer = components["schemas"]["CallAnswerIn"];

export type RegenerateBody = components["schemas"]["RegenerateBody"];

export interface TimelineActions {
  readonly chatId: string;
  /** The user may change providers and their keys. */
  readonly isAdmin: boolean;
  /** Sends a message of the user; with `mode` the chat leaves or enters plan mode with it. */
  send: (text: string, mode?: "off" | "plan") => void;
  /** Gives the result of a call that a program outside should have run. */
  answer: (callId: string, output: unknown) => Promise<void>;
  /** Approves, denies or answers a call that waits for a person. */
  decide: (answer: CallAnswer) => Promise<void>;
  /** Goes on with the queue that waits. */
  resume: () => Promise<void>;
  /** Sends the last message of the user again, after an error that is out of the way. */
  tryAgain: () => void;
  /** Answers a message of the user again; what there is of it is kept as a version. */
  regenerate: (messageId: number, chosen: RegenerateBody) => Promise<void>;
  switchModel: () => void;
  openSettings: (path: string) => void;
  edit: (messageId: number) => void;
  fork: (messageId: number) => Promise<void>;
  copyLink: (messageId: number) => void;
  /** The panel's account of who had the chat, and why it changed. */
  openRuns: (messageId: number | null) => void;
  openChanges: (path: string) => void;
  /** Null: the workspace of the chat is being built, and its build is not known yet. */
  buildLog: (buildId: string | null, signal: AbortSignal) => Promise<BuildLog>;
  fileText: (fileId: string, signal: AbortSignal) => Promise<string>;
  discardSend: (id: string) => void;
  /** Takes the text of an unsent message back into the composer. */
  editSend: (id: string) => void;
}

const nothing = () => undefined;
const nowhere = () => Promise.resolve();

export const NO_ACTIONS: TimelineActions = {
  chatId: "",
  isAdmin: false,
  send: nothing,
  answer: nowhere,
  decide: nowhere,
  resume: nowhere,
  tryAgain: nothing,
  regenerate: nowhere,
  switchModel: nothing,
  openSettings: nothing,
  edit: nothing,
  fork: nowhere,
  copyLink: nothing,
  openRuns: nothing,
  openChanges: nothing,
  buildLog: () => Promise.resolve({ lines: [], hasEnded: true }),
  fileText: () => Promise.resolve(""),
  discardSend: nothing,
  editSend: nothing,
};

const Context = createContext<TimelineActions>(NO_ACTIONS);

export const ActionsProvider = Context.Provider;

export function useTimelineActions(): TimelineActions {
  return useContext(Context);
}

export function fileUrl(fileId: string): string {
  return `/api/v1/files/${encodeURIComponent(fileId)}/content`;
}

// Answers to calls that wait for a person.

/** Says what went wrong, and passes it on. */
export async function told<T>(request: Promise<T>): Promise<T> {
  try {
    return await request;
  } catch (error) {
    toast(error instanceof ApiError ? error.message : "That did not work. Try again.");
    throw error;
  }
}

/** Of this chat or of a subagent. A call is answered once: of a second answer the server says who was first. */
export async function decideCall(chatId: string, answer: CallAnswer): Promise<void> {
  const headers = { "Idempotency-Key": newUuid() };
  await told(api.POST("/api/v1/chats/{chat_id}/answers", { path: { chat_id: chatId }, body: { answers: [answer] }, headers }));
}

/** What a message does to a chat, by whether the chat is busy. */
import { CornerDownRight, ListOrdered, StopCircle, Undo2, type LucideIcon } from "lucide-react";
import { isBusy, type BusyBehavior, type ChatState, type SettledState } from "@/chat-state";

export interface BehaviorText {
  readonly behavior: BusyBehavior;
  /** On the button. */
  readonly verb: string;
  /** In the menu. */
  readonly name: string;
  readonly effect: string;
  readonly icon: LucideIcon;
  readonly shortcut?: string;
}

export const BEHAVIORS: readonly BehaviorText[] = [
  { behavior: "queue", verb: "Queue", name: "Queue", effect: "Waits for its turn", icon: ListOrdered, shortcut: "↵" },
  { behavior: "steer", verb: "Steer", name: "Steer", effect: "Joins before the next model call", icon: CornerDownRight },
  {
    behavior: "interrupt",
    verb: "Interrupt",
    name: "Interrupt",
    effect: "Stops the answer, keeps what was said",
    icon: StopCircle,
    shortcut: "Alt ↵",
  },
  {
    behavior: "rollback",
    verb: "Replace",
    name: "Replace the turn",
    effect: "Drops the running turn, this takes its place",
    icon: Undo2,
  },
];

export function behaviorText(behavior: BusyBehavior): BehaviorText {
  const found = BEHAVIORS.find((one) => one.behavior === behavior);
  if (found === undefined) throw new Error(`unknown behavior ${behavior}`);
  return found;
}

/** A chat whose messages wait in its queue. */
export function takesBehaviors(state: SettledState): boolean {
  return isBusy(state.status);
}

/** Questions of the agent that wait for a reply: the call, and how many questions it has. */
export function waitingQuestions(state: SettledState): readonly { readonly callId: string; readonly count: number }[] {
  if (state.status !== "requires_action") return [];
  const calls = state.messages.slice(-20).flatMap((message) => message.content);
  return state.requestedCalls
    .filter((request) => request.kind === "question")
    .map(({ tool_call_id: callId, args }) => {
      const part = calls.find((one) => one.type === "tool-call" && one.tool_call_id === callId);
      const known = (args ?? (part?.type === "tool-call" ? part.args : null)) as { questions?: unknown } | null;
      return { callId, count: Array.isArray(known?.questions) ? known.questions.length : 1 };
    });
}

/** Whether tools run now: their calls are committed or complete, and their results are not there yet. */
export function runsTools(state: ChatState): boolean {
  if (state.status !== "running") return false;
  const answered = new Set<string>();
  const called: string[] = [];
  const parts = [...state.messages.slice(-20).flatMap((message) => message.content), ...(state.live?.parts ?? [])];
  for (const part of parts) {
    if (part.type === "tool-call" && part.args_delta == null && part.provider_executed !== true) called.push(part.tool_call_id);
    if (part.type === "tool-result" && part.result_delta == null) answered.add(part.tool_call_id);
  }
  return called.some((id) => !answered.has(id));
}

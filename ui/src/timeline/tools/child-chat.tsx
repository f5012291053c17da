/** What a subagent does now, as the parent's card shows it. */
import { Check } from "lucide-react";
import { Icon, Spinner, StatusState, type Status } from "@/components";
import { useChatSelector } from "@/connection";
import type { ChatState } from "@/chat-state/types";
import { briefOf, type Brief } from "../rows/brief";
import { rows } from "../rows/rows";

const SHOWN_STEPS = 3;

export function ChildState({ chatId }: { readonly chatId: string }) {
  const status = useChatSelector(chatId, statusOf);
  return status === null ? null : <StatusState status={status} />;
}

/** The last steps of the child, or its task before there are any. */
export function ChildProgress({ chatId, prompt }: { readonly chatId: string; readonly prompt: string }) {
  const steps = useChatSelector(chatId, stepsOf, isSame);
  if (steps.length === 0) return <div className="tool-text m">{prompt}</div>;
  return (
    <ul className="steps">
      {steps.map((step) => (
        <li key={step.key}>
          {step.isGoing ? <Spinner className="acc" /> : <Icon of={Check} className="ok" />}
          <span className="cut grow">{step.text}</span>
          {step.isGoing && <time>now</time>}
        </li>
      ))}
    </ul>
  );
}

function statusOf(state: ChatState): Status | null {
  if (!state.loaded || state.status === "archived") return null;
  return state.status === "waiting" ? "done" : state.status;
}

function stepsOf(state: ChatState): readonly Brief[] {
  if (!state.loaded) return [];
  return rows(state)
    .slice(-12)
    .flatMap((row) => briefOf(row) ?? [])
    .slice(-SHOWN_STEPS);
}

function isSame(one: readonly Brief[], two: readonly Brief[]): boolean {
  return one.length === two.length && one.every((step, index) => step.key === two[index]?.key && step.text === two[index].text && step.isGoing === two[index].isGoing);
}

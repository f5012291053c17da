/** What a subagent does now, as the parent's card shows it. */
import { Check, Square } from "lucide-react";
import { useState } from "react";
import { api, ApiError } from "@/api/client";
import { Button, Icon, Spinner, StatusState, type Status } from "@/components";
import { useChatDetails, useChatSelector } from "@/connection";
import { toast } from "@/shell";
import type { ChatState } from "@/chat-state/types";
import type { CallAnswer } from "../actions";
import { decideCall } from "../decide-call";
import { briefOf, type Brief } from "../rows/brief";
import { asObject } from "../rows/json";
import { rows } from "../rows/rows";
import { ApprovalForm } from "./approval-card";
import { QuestionForm, questionsOf } from "./question-card";

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

/** What the child asks of a person, answered from here. */
export function ChildAsks({ chatId }: { readonly chatId: string }) {
  const calls = useChatSelector(chatId, requestedOf);
  const details = useChatDetails(chatId).data;
  if (calls.length === 0 || details?.is_owner === false) return null;
  const title = details?.title ?? "";
  const onAnswer = (answer: CallAnswer) => decideCall(chatId, answer);
  return (
    <div className="child-asks">
      {calls.map((request) =>
        request.kind === "approval" ? (
          <ApprovalForm key={request.tool_call_id} request={request} args={null} from={title} onAnswer={onAnswer} />
        ) : request.kind === "question" ? (
          <QuestionForm key={request.tool_call_id} request={request} questions={questionsOf(asObject(request.args))} from={title} onAnswer={onAnswer} />
        ) : null,
      )}
    </div>
  );
}

const requestedOf = (state: ChatState) => state.requestedCalls;

const STOPPABLE: ReadonlySet<ChatState["status"]> = new Set(["pending", "running", "requires_action"]);

/** Stops the child alone; its parent is told. */
export function StopChild({ chatId }: { readonly chatId: string }) {
  const canStop = useChatSelector(chatId, (state) => state.loaded && STOPPABLE.has(state.status));
  const isOwner = useChatDetails(chatId).data?.is_owner !== false;
  const [isBusy, setBusy] = useState(false);
  if (!canStop || !isOwner) return null;
  const stop = async () => {
    setBusy(true);
    try {
      await api.POST("/api/v1/chats/{chat_id}/interrupt", { path: { chat_id: chatId } });
    } catch (error) {
      toast({ text: error instanceof ApiError ? error.message : "The agent was not stopped. Try again.", tone: "danger" });
    } finally {
      setBusy(false);
    }
  };
  return (
    <Button size="xs" icon={Square} busy={isBusy} onClick={() => void stop()}>
      Stop agent
    </Button>
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

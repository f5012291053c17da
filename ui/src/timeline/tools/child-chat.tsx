/** What a subagent does now, as the parent's card shows it. */
import { Check, Square } from "lucide-react";
import { useMemo, useState } from "react";
import { api } from "@/api/client";
import { ApiError } from "@/api/errors";
import type { ChatState, Part } from "@/chat-state/types";
import { Button, Icon, Spinner, type Status, StatusState } from "@/components";
import { useChatDetails, useChatSelector } from "@/connection";
import { toast } from "@/platform/toasts";
import type { CallAnswer } from "../actions";
import { decideCall } from "../decide-call";
import { type Brief, stepOf } from "../rows/brief";
import { asObject } from "../rows/json";
import { RowModel } from "../rows/rows";
import { ApprovalForm } from "./approval-card";
import { QuestionForm, questionsOf } from "./question-card";

const SHOWN_STEPS = 3;

export function ChildState({ chatId }: { readonly chatId: string }) {
  const status = useChatSelector(chatId, statusOf);
  return status === null ? null : <StatusState status={status} />;
}

/** The last steps of the child, or its task before there are any. */
export function ChildProgress({ chatId, prompt }: { readonly chatId: string; readonly prompt: string }) {
  const stepsOf = useMemo(() => stepReader(), []);
  const steps = useChatSelector(chatId, stepsOf);
  if (steps.length === 0) return <div className="tool-text tone-muted">{prompt}</div>;
  return (
    <ul className="tool-steps">
      {steps.map((step) => (
        <li key={step.key}>
          {step.isGoing ? <Spinner className="tone-accent" /> : <Icon of={Check} className="tone-ok" />}
          <span className="ui-ellipsis ui-grow">{step.text}</span>
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
    <div className="ask-children">
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

/**
 * Reads the last steps of a chat. As long as the same parts are being written it returns the same list: the
 * card changes with the steps and not with the words.
 */
export function stepReader(): (state: ChatState) => readonly Brief[] {
  const model = new RowModel();
  let last: { readonly state: ChatState; readonly steps: readonly Brief[] } | null = null;
  return (state) => {
    if (!state.loaded) return NO_STEPS;
    if (last !== null && hasSameParts(last.state, state)) return last.steps;
    const found = model.rows(state).slice(-12).flatMap((row) => stepOf(row) ?? []);
    last = { state, steps: found.slice(-SHOWN_STEPS) };
    return last.steps;
  };
}

const NO_STEPS: readonly Brief[] = [];

function hasSameParts(one: ChatState, two: ChatState): boolean {
  const before = one.live?.parts ?? [];
  const after = two.live?.parts ?? [];
  return (
    one.messages === two.messages &&
    one.status === two.status &&
    one.retry === two.retry &&
    one.requestedCalls === two.requestedCalls &&
    before.length === after.length &&
    after.every((part, index) => phaseOf(part) === phaseOf(before[index]))
  );
}

/** What a part is and whether it is complete, without its text. */
function phaseOf(part: Part | undefined): string {
  if (part?.type === "tool-call") return `call ${part.tool_call_id} ${part.args_delta == null}`;
  if (part?.type === "tool-result") return `result ${part.tool_call_id} ${part.result_delta == null}`;
  return part?.type ?? "";
}

/** Subagents: spawn, wait, message, interrupt, list. A child is a chat of its own, one click away. */
import { Check, ListTree, MessageSquare, Network, OctagonPause, Square } from "lucide-react";
import { type ReactNode, useMemo, useState } from "react";
import { Link } from "wouter";
import { api, ApiError } from "@/api/client";
import type { ChatState, Part } from "@/chat-state/types";
import { Button, Icon, Spinner, type Status, StatusState } from "@/components";
import { useChatDetails, useChatSelector } from "@/connection";
import { toast } from "@/platform/toasts";
import { Markdown } from "@/text/markdown";
import { type CallAnswer, decideCall, useTimelineActions } from "../actions";
import { type Brief, stepOf } from "../rows/brief";
import { isGoing } from "../rows/call-view";
import { asObject, objectsOf, textOf } from "../rows/json";
import { RowModel } from "../rows/rows";
import type { ToolCall } from "../rows/tool-call";
import { ApprovalForm } from "./approval-card";
import { type CardProps, ToolFrame } from "./frame";
import { QuestionForm, questionsOf } from "./question-card";

export function SpawnCard({ call, rowKey }: CardProps) {
  const isFollowed = useTimelineActions().chatId !== "";
  const childId = childOf(call);
  return (
    <ToolFrame
      call={call}
      rowKey={rowKey}
      icon={Network}
      meta={isFollowed && childId !== "" && call.state === "done" ? <ChildState chatId={childId} /> : undefined}
      foot={childId === "" ? undefined : <ChildFoot chatId={childId} isFollowed={isFollowed} />}
    >
      {call.state !== "failed" && isFollowed && childId !== "" && (
        <>
          <ChildProgress chatId={childId} prompt={textOf(call.args, "prompt")} />
          <ChildAsks chatId={childId} />
        </>
      )}
    </ToolFrame>
  );
}

export function WaitCard({ call, rowKey }: CardProps) {
  const isFollowed = useTimelineActions().chatId !== "";
  const childId = childOf(call);
  const isWaiting = isFollowed && childId !== "" && isGoing(call.state);
  const report = textOf(asObject(call.result), "report");
  return (
    <ToolFrame call={call} rowKey={rowKey} icon={Network} foot={childId === "" ? undefined : <ChildFoot chatId={childId} isFollowed={isWaiting} />}>
      {(isWaiting || report !== "") && (
        <>
          {isWaiting && <ChildProgress chatId={childId} prompt="" />}
          {report !== "" && (
            <div className="tool-text">
              <Markdown text={report} />
            </div>
          )}
        </>
      )}
    </ToolFrame>
  );
}

export function MessageAgentCard({ call, rowKey }: CardProps) {
  const childId = childOf(call);
  return (
    <ToolFrame call={call} rowKey={rowKey} icon={MessageSquare} foot={childId === "" ? undefined : <OpenChat chatId={childId} />}>
      {call.state !== "failed" && <div className="tool-text">{textOf(call.args, "message")}</div>}
    </ToolFrame>
  );
}

export function InterruptAgentCard({ call, rowKey }: CardProps) {
  return <ToolFrame call={call} rowKey={rowKey} icon={OctagonPause} />;
}

export function ListAgentsCard({ call, rowKey }: CardProps) {
  const agents = objectsOf(asObject(call.result), "agents");
  return (
    <ToolFrame call={call} rowKey={rowKey} icon={ListTree}>
      {agents.length > 0 && (
        <ul className="tool-steps">
          {agents.map((agent, index) => (
            <li key={index}>
              <ChatLink chatId={textOf(agent, "chat_id")}>{textOf(agent, "title")}</ChatLink>
              <span className="tone-subtle">{textOf(agent, "status")}</span>
            </li>
          ))}
        </ul>
      )}
    </ToolFrame>
  );
}

/** The way to the child, and what a person can do to it from here. */
function ChildFoot({ chatId, isFollowed }: { readonly chatId: string; readonly isFollowed: boolean }) {
  return (
    <>
      <OpenChat chatId={chatId} />
      <span className="ui-grow" />
      {isFollowed && <StopChild chatId={chatId} />}
    </>
  );
}

function OpenChat({ chatId }: { readonly chatId: string }) {
  return <ChatLink chatId={chatId}>Open chat</ChatLink>;
}

function ChatLink({ chatId, children }: { readonly chatId: string; readonly children: ReactNode }) {
  if (!/^[0-9a-f-]{36}$/.test(chatId)) return <span>{children}</span>;
  return (
    <Link className="ui-link" href={`/c/${chatId}`}>
      {children}
    </Link>
  );
}

function childOf(call: ToolCall): string {
  const found = textOf(asObject(call.result), "chat_id") || (isGoing(call.state) ? textOf(call.args, "chat_id") : "");
  return /^[0-9a-f-]{36}$/.test(found) ? found : "";
}

// What a subagent does now, as the parent's card shows it.

const SHOWN_STEPS = 3;

function ChildState({ chatId }: { readonly chatId: string }) {
  const status = useChatSelector(chatId, statusOf);
  return status === null ? null : <StatusState status={status} />;
}

/** The last steps of the child, or its task before there are any. */
function ChildProgress({ chatId, prompt }: { readonly chatId: string; readonly prompt: string }) {
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
function ChildAsks({ chatId }: { readonly chatId: string }) {
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
function StopChild({ chatId }: { readonly chatId: string }) {
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
    const found = model
      .rows(state)
      .slice(-12)
      .flatMap((row) => stepOf(row) ?? []);
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

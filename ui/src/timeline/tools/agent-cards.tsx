/** Subagents: spawn, wait, message, interrupt, list. A child is a chat of its own, one click away. */
import { ListTree, MessageSquare, Network, OctagonPause } from "lucide-react";
import type { ReactNode } from "react";
import { Link } from "wouter";
import { Markdown } from "@/text/markdown";
import { useTimelineActions } from "../actions";
import { asObject, objectsOf, textOf } from "../rows/json";
import type { ToolCall } from "../rows/tool-call";
import { ChildAsks, ChildProgress, ChildState, StopChild } from "./child-chat";
import { type CardProps, Failure, isGoing, ToolFrame, verbOf } from "./frame";

export function SpawnCard({ call, rowKey }: CardProps) {
  const isFollowed = useTimelineActions().chatId !== "";
  const childId = childOf(call);
  const result = asObject(call.result);
  const title = textOf(result, "title") || textOf(call.args, "title") || firstLine(textOf(call.args, "prompt"));
  return (
    <ToolFrame
      call={call}
      rowKey={rowKey}
      icon={Network}
      verb={verbOf(call, "Spawning agent", "Spawned agent", "Agent not spawned")}
      subject={title}
      isSentence
      opens={call.state === "failed"}
      meta={isFollowed && childId !== "" && call.state === "done" ? <ChildState chatId={childId} /> : undefined}
      foot={childId === "" ? undefined : <ChildFoot chatId={childId} isFollowed={isFollowed} />}
    >
      {call.state === "failed" ? (
        <Failure text={textOf(result, "error")} />
      ) : (
        isFollowed &&
        childId !== "" && (
          <>
            <ChildProgress chatId={childId} prompt={textOf(call.args, "prompt")} />
            <ChildAsks chatId={childId} />
          </>
        )
      )}
    </ToolFrame>
  );
}

export function WaitCard({ call, rowKey }: CardProps) {
  const isFollowed = useTimelineActions().chatId !== "";
  const result = asObject(call.result);
  const childId = childOf(call);
  const isWaiting = isFollowed && childId !== "" && isGoing(call.state);
  const report = textOf(result, "report");
  const error = textOf(result, "last_error") || textOf(result, "error");
  const isAtWork = result?.timed_out === true || result?.interrupted === true;
  return (
    <ToolFrame
      call={call}
      rowKey={rowKey}
      icon={Network}
      verb={verbOf(call, "Waiting for agent", isAtWork ? "Agent still works" : "Agent answered", "Agent failed")}
      subject={textOf(result, "title")}
      isSentence
      opens={call.state === "failed" || isGoing(call.state)}
      foot={childId === "" ? undefined : <ChildFoot chatId={childId} isFollowed={isWaiting} />}
    >
      {isWaiting && <ChildProgress chatId={childId} prompt="" />}
      {error !== "" && <Failure text={error} />}
      {report !== "" && (
        <div className="tool-text">
          <Markdown text={report} />
        </div>
      )}
    </ToolFrame>
  );
}

export function MessageAgentCard({ call, rowKey }: CardProps) {
  const result = asObject(call.result);
  return (
    <ToolFrame
      call={call}
      rowKey={rowKey}
      icon={MessageSquare}
      verb={verbOf(call, "Writing to agent", "Wrote to agent", "Message not sent")}
      subject={textOf(result, "title")}
      isSentence
      foot={childOf(call) === "" ? undefined : <OpenChat chatId={childOf(call)} />}
    >
      {call.state === "failed" ? <Failure text={textOf(result, "error")} /> : <div className="tool-text">{textOf(call.args, "message")}</div>}
    </ToolFrame>
  );
}

export function InterruptAgentCard({ call, rowKey }: CardProps) {
  const result = asObject(call.result);
  return (
    <ToolFrame
      call={call}
      rowKey={rowKey}
      icon={OctagonPause}
      verb={verbOf(call, "Stopping agent", "Stopped agent", "Agent not stopped")}
      subject={textOf(result, "title")}
      isSentence
    >
      {call.state === "failed" && <Failure text={textOf(result, "error")} />}
    </ToolFrame>
  );
}

export function ListAgentsCard({ call, rowKey }: CardProps) {
  const agents = objectsOf(asObject(call.result), "agents");
  return (
    <ToolFrame
      call={call}
      rowKey={rowKey}
      icon={ListTree}
      verb={verbOf(call, "Listing agents", "Listed agents")}
      meta={call.state === "done" ? <span>{agents.length === 1 ? "1 agent" : `${agents.length} agents`}</span> : undefined}
    >
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

function firstLine(text: string): string {
  return text.trim().split("\n")[0] ?? "";
}

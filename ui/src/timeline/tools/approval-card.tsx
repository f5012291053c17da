/** A call that a person must approve before it runs. */
import { ClipboardList, ShieldAlert } from "lucide-react";
import { type KeyboardEvent, type RefObject, useEffect, useId, useRef, useState } from "react";
import { useSearch } from "wouter";
import type { RequestedCall } from "@/chat-state/types";
import { Button, Countdown, StatusIcon } from "@/components";
import { focusComposer } from "@/platform/actions";
import { Markdown } from "@/text/markdown";
import { type CallAnswer, useTimelineActions } from "../actions";
import { humanize } from "../rows/call-view";
import { asObject, type JsonObject, textOf } from "../rows/json";
import { type CardProps, Failure, ToolFrame } from "./frame";

export function ApprovalCard({ call, rowKey }: CardProps) {
  const { decide } = useTimelineActions();
  if (call.request === null) {
    return <ToolFrame call={call} rowKey={rowKey} icon={ShieldAlert} view={{ title: "Asks for approval", subject: humanize(call.name), isSentence: true }} />;
  }
  return <ApprovalForm request={call.request} args={call.args} from="" onAnswer={decide} />;
}

interface ApprovalFormProps {
  readonly request: RequestedCall;
  /** What the message has, if the request is too long to have them. */
  readonly args: JsonObject | null;
  /** The subagent that asks; empty: this chat. */
  readonly from: string;
  readonly onAnswer: (answer: CallAnswer) => Promise<void>;
}

/** The card that the address names, as a notification does, is brought into view and focused. */
function useLinkedCard(callId: string): RefObject<HTMLElement | null> {
  const card = useRef<HTMLElement>(null);
  const isLinked = new URLSearchParams(useSearch()).get("call") === callId;
  useEffect(() => {
    if (!isLinked) return;
    card.current?.scrollIntoView({ block: "center" });
    card.current?.focus({ preventScroll: true });
  }, [isLinked]);
  return card;
}

/** Approve, deny with a reason, or approve all such calls of the chat. `y` and `n` do it by keys. */
export function ApprovalForm({ request, args, from, onAnswer }: ApprovalFormProps) {
  const [sent, setSent] = useState<CallAnswer["decision"] | "always" | null>(null);
  const [isDenying, setDenying] = useState(false);
  const [reason, setReason] = useState("");
  const reasonId = useId();
  const card = useLinkedCard(request.tool_call_id);
  const answer = (decision: "approve" | "deny", more: Partial<CallAnswer> = {}) => {
    if (sent !== null) return;
    setSent(more.always === true ? "always" : decision);
    void onAnswer({ tool_call_id: request.tool_call_id, decision, ...more }).catch(() => setSent(null));
  };
  const deny = () => answer("deny", reason.trim() === "" ? {} : { reason: reason.trim() });
  const onKey = (event: KeyboardEvent) => {
    const isTyping = event.target instanceof HTMLInputElement;
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "y") answer("approve");
    else if (event.key === "n") setDenying(true);
    else return;
    event.preventDefault();
  };
  const shown = asObject(request.args) ?? args;
  const command = textOf(shown, "command");
  return (
    <section ref={card} className="ask-card" aria-label={`Approval: ${humanize(request.tool_name)}`} aria-keyshortcuts="y n" tabIndex={0} onKeyDown={onKey}>
      <header>
        <StatusIcon status="requires_action" decorative />
        {command === "" ? `Allow “${humanize(request.tool_name)}”?` : "Run this command?"}
        {from !== "" && <span className="ui-meta ui-ellipsis">{from}</span>}
      </header>
      <div className="ask-body">
        <pre className="ask-command" tabIndex={0} aria-label={command === "" ? "Arguments" : "Command"}>
          {command === "" ? JSON.stringify(shown ?? {}, null, 2) : command}
        </pre>
        <Facts shown={shown} hasCommand={command !== ""} reason={request.reason ?? ""} />
        {isDenying && (
          <label className="ask-deny" htmlFor={reasonId}>
            <span>What should it do instead? The agent reads it.</span>
            <input
              id={reasonId}
              className="ui-field"
              autoFocus
              maxLength={2000}
              value={reason}
              placeholder="Optional"
              onChange={(event) => setReason(event.target.value)}
              onKeyDown={(event) => {
                if (event.key === "Enter") deny();
                if (event.key === "Escape") setDenying(false);
                if (event.key === "Escape" || event.key === "Enter") {
                  event.preventDefault();
                  event.stopPropagation();
                }
              }}
            />
          </label>
        )}
      </div>
      <footer>
        {isDenying ? (
          <>
            <Button size="sm" variant="danger" busy={sent === "deny"} onClick={deny}>
              Deny
            </Button>
            <Button size="sm" variant="quiet" disabled={sent !== null} onClick={() => setDenying(false)}>
              Back
            </Button>
          </>
        ) : (
          <>
            <Button size="sm" variant="primary" busy={sent === "approve"} disabled={sent !== null && sent !== "approve"} onClick={() => answer("approve")}>
              Approve once
            </Button>
            {request.can_always === true && (
              <Button size="sm" busy={sent === "always"} disabled={sent !== null && sent !== "always"} onClick={() => answer("approve", { always: true })}>
                Always in this chat
              </Button>
            )}
            <Button size="sm" variant="quiet" disabled={sent !== null} onClick={() => setDenying(true)}>
              Deny…
            </Button>
          </>
        )}
        <span className="ui-grow" />
        <Deadline at={request.deadline ?? null} />
      </footer>
    </section>
  );
}

/** How long an answer is waited for. */
export function Deadline({ at }: { readonly at: string | null }) {
  if (at === null) return null;
  return (
    <span className="tone-subtle ask-small">
      Expires in <Countdown until={at} />
    </span>
  );
}

/** Why the policy asks, and what the agent says of a command. */
function Facts({ shown, hasCommand, reason }: { readonly shown: JsonObject | null; readonly hasCommand: boolean; readonly reason: string }) {
  const intent = hasCommand ? textOf(shown, "model_intent") : "";
  const workdir = hasCommand ? textOf(shown, "workdir") : "";
  if (reason === "" && intent === "" && workdir === "") return null;
  return (
    <dl className="ask-reasons">
      {reason !== "" && (
        <>
          <dt>Why it asks</dt>
          <dd>{reason}</dd>
        </>
      )}
      {intent !== "" && (
        <>
          <dt>Purpose</dt>
          <dd>{intent}</dd>
        </>
      )}
      {workdir !== "" && (
        <>
          <dt>Directory</dt>
          <dd>
            <code>{workdir}</code>
          </dd>
        </>
      )}
    </dl>
  );
}

/** A call whose result a program outside must send. */
export function RequestedCard({ call }: CardProps) {
  const { answer } = useTimelineActions();
  const [isSent, setSent] = useState(false);
  const decline = () => {
    setSent(true);
    void answer(call.id, { error: "The user declined this call." }).catch(() => setSent(false));
  };
  return (
    <section className="ask-card" aria-label="Needs you">
      <header>
        <StatusIcon status="requires_action" decorative />
        {`Waiting for the result of ${humanize(call.name)}`}
      </header>
      <div className="ask-body">
        <pre className="ask-command" tabIndex={0} aria-label="Arguments">
          {JSON.stringify(call.args ?? {}, null, 2)}
        </pre>
        <dl className="ask-reasons">
          <dt>Why it waits</dt>
          <dd>A program outside of chatd runs this tool and sends its result. The chat goes on by itself then.</dd>
        </dl>
      </div>
      <footer>
        <Button size="sm" busy={isSent} onClick={decline}>
          Decline
        </Button>
        <span className="ui-grow" />
        <Deadline at={call.request?.deadline ?? null} />
      </footer>
    </section>
  );
}

// A plan of the agent, to read and to let run.

export function PlanCard({ call, rowKey, isLast }: CardProps) {
  const fileId = textOf(asObject(call.result), "file_id");
  if (call.state === "done" && isLast) return <PlanForm fileId={fileId} />;
  return (
    <ToolFrame call={call} rowKey={rowKey} icon={ClipboardList}>
      {fileId !== "" && <PlanText fileId={fileId} />}
    </ToolFrame>
  );
}

function PlanForm({ fileId }: { readonly fileId: string }) {
  const { send } = useTimelineActions();
  const [isSent, setSent] = useState(false);
  return (
    <section className="ask-card" aria-label="Plan">
      <header>
        <StatusIcon status="requires_action" decorative />
        Plan is ready to read
      </header>
      <PlanText fileId={fileId} />
      <footer>
        <Button
          size="sm"
          variant="primary"
          busy={isSent}
          onClick={() => {
            setSent(true);
            send("Implement the plan.", "off");
          }}
        >
          Implement plan
        </Button>
        <Button size="sm" onClick={focusComposer}>
          Ask for changes
        </Button>
      </footer>
    </section>
  );
}

function PlanText({ fileId }: { readonly fileId: string }) {
  const { fileText } = useTimelineActions();
  const [text, setText] = useState<string | null>(null);
  const [hasFailed, setFailed] = useState(false);
  useEffect(() => {
    const stop = new AbortController();
    fileText(fileId, stop.signal).then(
      (found) => {
        if (!stop.signal.aborted) setText(found);
      },
      () => {
        if (!stop.signal.aborted) setFailed(true);
      },
    );
    return () => stop.abort();
  }, [fileText, fileId]);
  if (hasFailed) return <Failure text="The plan could not be loaded. Reload the page to try again." />;
  return (
    <div className="ask-body">
      <Markdown text={text ?? ""} className="ask-plan" />
    </div>
  );
}

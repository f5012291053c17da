/** The frame of a tool call: a quiet line if it went well and only read, else a card. */
import { ChevronRight, type LucideIcon } from "lucide-react";
import { createContext, type ReactNode, useCallback, useContext, useState, useSyncExternalStore } from "react";
import { classes, Elapsed, Icon, Spinner, StatusIcon } from "@/components";
import { durationText } from "@/platform/words";
import { isQuiet } from "../rows/row";
import { type CallState, durationOf, type ToolCall } from "../rows/tool-call";

export interface CardProps {
  readonly call: ToolCall;
  readonly rowKey: string;
  /** The user may still answer it. */
  readonly isLast: boolean;
}

export interface FrameProps {
  readonly call: ToolCall;
  readonly rowKey: string;
  readonly icon: LucideIcon;
  readonly verb: string;
  readonly subject?: string | undefined;
  /** The subject is a sentence, not code. */
  readonly isSentence?: boolean;
  readonly meta?: ReactNode;
  readonly opens?: boolean;
  readonly foot?: ReactNode;
  readonly children?: ReactNode;
}

export const isGoing = (state: CallState): boolean => state === "streaming" || state === "running" || state === "waiting" || state === "background";

const TONES: Readonly<Record<CallState, string | false>> = {
  streaming: "is-going",
  running: "is-going",
  waiting: "is-going",
  background: "is-going",
  failed: "is-bad",
  interrupted: "is-cut-off",
  done: false,
};

export function ToolFrame(props: FrameProps) {
  const { call, rowKey, icon, verb, subject, isSentence = false, meta, foot, children } = props;
  const hasBody = hasContent(children) || hasContent(foot);
  const byDefault = props.opens ?? (isGoing(call.state) || call.state === "failed");
  const [isOpen, setOpen] = useOpen(rowKey, byDefault);
  const isLine = isQuiet(call);
  const summary = (
    <>
      {call.state === "interrupted" ? <StatusIcon status="stopped" decorative /> : <Icon of={icon} />}
      <b>{verb}</b>
      {subject !== undefined &&
        subject !== "" &&
        (isSentence ? <span className="ui-ellipsis tone-muted">{subject}</span> : <code title={subject}>{subject}</code>)}
      <span className="ui-meta">
        {meta ?? <CallTime call={call} />}
        {hasBody && <Icon of={ChevronRight} size="sm" className="ui-chevron" />}
      </span>
    </>
  );
  if (!hasBody)
    return (
      <div className={isLine ? "tool-line" : classes("tool-card is-bare", TONES[call.state])}>
        {isLine ? summary : <div className="tool-head">{summary}</div>}
      </div>
    );
  return (
    <details className={isLine ? "tool-quiet" : classes("tool-card", TONES[call.state])} open={isOpen}>
      <summary
        className={isLine ? "tool-line" : undefined}
        onClick={(event) => {
          event.preventDefault();
          setOpen(!isOpen);
        }}
      >
        {summary}
      </summary>
      {isOpen && children}
      {isOpen && hasContent(foot) && <div className="tool-foot">{foot}</div>}
    </details>
  );
}

function hasContent(node: ReactNode): boolean {
  return node !== undefined && node !== null && node !== false && node !== "";
}

const SHORTEST_MS = 50;

/** How long the call took, or takes. */
export function CallTime({ call, word }: { readonly call: ToolCall; readonly word?: string }) {
  if (isGoing(call.state)) {
    return (
      <>
        <span className="ui-state tone-accent">
          <Spinner />
          {word ?? goingWord(call.state)}
        </span>
        {call.startedAt !== null && <Elapsed since={call.startedAt} />}
      </>
    );
  }
  const took = durationOf(call);
  if (took === null || took < SHORTEST_MS) return null;
  return <span>{call.state === "interrupted" ? `after ${durationText(took)}` : durationText(took)}</span>;
}

function goingWord(state: CallState): string {
  if (state === "streaming") return "Writing";
  if (state === "waiting") return "Waiting";
  return state === "background" ? "Background" : "Live";
}

/** Why a call failed, in a sentence, and what it means. */
export function Failure({ text, then }: { readonly text: string; readonly then?: string }) {
  return (
    <div className="tool-error">
      <span>{text}</span>
      {then !== undefined && <span className="tone-muted">{then}</span>}
    </div>
  );
}

/** Verbs of a call: while it goes on, when it is done, when it failed. */
export function verbOf(call: ToolCall, going: string, done: string, failed = `${done}, failed`): string {
  if (call.isCut) return "Cut off";
  if (call.state === "interrupted") return "Stopped by you";
  if (call.state === "failed") return failed;
  return isGoing(call.state) && call.state !== "background" ? going : done;
}

// Which rows are open. Kept outside the rows, which come and go as the list scrolls.

class OpenRows {
  private readonly chosen = new Map<string, boolean>();
  private readonly listeners = new Set<() => void>();

  get(key: string): boolean | undefined {
    return this.chosen.get(key);
  }

  set(key: string, isOpen: boolean): void {
    this.chosen.set(key, isOpen);
    for (const listener of this.listeners) listener();
  }

  subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => {
      this.listeners.delete(listener);
    };
  };
}

const Context = createContext(new OpenRows());

export function OpenRowsProvider({ children }: { readonly children: ReactNode }) {
  const [rows] = useState(() => new OpenRows());
  return <Context value={rows}>{children}</Context>;
}

/** Whether a row is open, by choice or by default, and how to change it. */
export function useOpen(key: string, byDefault: boolean): readonly [boolean, (isOpen: boolean) => void] {
  const rows = useContext(Context);
  const chosen = useSyncExternalStore(rows.subscribe, () => rows.get(key));
  const set = useCallback((isOpen: boolean) => rows.set(key, isOpen), [rows, key]);
  return [chosen ?? byDefault, set];
}

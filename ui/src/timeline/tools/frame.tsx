/** The frame of a tool call: a quiet line if it went well and only read, else a card. */
import { ChevronRight, type LucideIcon } from "lucide-react";
import { createContext, type ReactNode, useCallback, useContext, useState, useSyncExternalStore } from "react";
import { classes, Elapsed, Icon, PlusMinus, Spinner, StatusIcon, Tag } from "@/components";
import { durationText } from "@/platform/words";
import { type CallSummary, type CallView, callView, isGoing, isQuiet } from "../rows/call-view";
import { type CallState, durationOf, type ToolCall } from "../rows/tool-call";

export interface CardProps {
  readonly call: ToolCall;
  readonly rowKey: string;
  /** The user may still answer it. */
  readonly isLast: boolean;
}

interface FrameProps {
  readonly call: ToolCall;
  readonly rowKey: string;
  readonly icon: LucideIcon;
  /** What differs from the view of the call, if the card is of several calls. */
  readonly view?: Partial<CallView>;
  /** Instead of the summary. */
  readonly meta?: ReactNode;
  /** What the error means for the user. */
  readonly consequence?: string;
  /** The error stands below the details, as the end of an output does. */
  readonly isErrorLast?: boolean;
  readonly foot?: ReactNode;
  readonly children?: ReactNode;
}

const TONES: Readonly<Record<CallState, string | false>> = {
  streaming: "is-going",
  running: "is-going",
  waiting: "is-going",
  background: "is-going",
  failed: "is-bad",
  interrupted: "is-cut-off",
  done: false,
};

export function ToolFrame({ call, rowKey, icon, meta, consequence, isErrorLast = false, foot, children, ...props }: FrameProps) {
  const view = { ...callView(call), ...props.view };
  const [isOpen, setOpen] = useOpen(rowKey, view.isOpen);
  const hasBody = view.error !== "" || hasContent(children) || hasContent(foot);
  const isLine = isQuiet(call);
  const failure = view.error !== "" && <Failure text={view.error} then={consequence} />;
  const head = (
    <>
      {call.state === "interrupted" ? <StatusIcon status="stopped" decorative /> : <Icon of={icon} />}
      <b>{view.title}</b>
      {view.subject !== "" &&
        (view.isSentence ? <span className="ui-ellipsis tone-muted">{view.subject}</span> : <code title={view.subject}>{view.subject}</code>)}
      <span className="ui-meta">
        {view.server !== "" && <Tag>{view.server}</Tag>}
        {meta ?? <Summary call={call} summary={view.summary} />}
        {hasBody && <Icon of={ChevronRight} size="sm" className="ui-chevron" />}
      </span>
    </>
  );
  if (!hasBody)
    return (
      <div className={isLine ? "tool-line" : classes("tool-card is-bare", TONES[call.state])}>{isLine ? head : <div className="tool-head">{head}</div>}</div>
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
        {head}
      </summary>
      {isOpen && !isErrorLast && failure}
      {isOpen && children}
      {isOpen && isErrorLast && failure}
      {isOpen && hasContent(foot) && <div className="tool-foot">{foot}</div>}
    </details>
  );
}

function hasContent(node: ReactNode): boolean {
  return node !== undefined && node !== null && node !== false && node !== "";
}

const SHORTEST_MS = 50;

/** What came of the call, or how long it took or takes. */
function Summary({ call, summary }: { readonly call: ToolCall; readonly summary: CallSummary | null }) {
  if (summary !== null) return "text" in summary ? <span>{summary.text}</span> : <PlusMinus {...summary} />;
  if (isGoing(call.state)) {
    return (
      <>
        <span className="ui-state tone-accent">
          <Spinner />
          {goingWord(call.state)}
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
export function Failure({ text, then }: { readonly text: string; readonly then?: string | undefined }) {
  return (
    <div className="tool-error">
      <span>{text}</span>
      {then !== undefined && <span className="tone-muted">{then}</span>}
    </div>
  );
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

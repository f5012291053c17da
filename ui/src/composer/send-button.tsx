import { ChevronDown, CornerDownRight, ListOrdered, type LucideIcon, Square, StopCircle, Undo2 } from "lucide-react";
import type { BusyBehavior } from "@/chat-state/outbox";
import type { ChatState, SettledState } from "@/chat-state/types";
import { classes, Icon, Menu, MenuItem, Spinner, Tooltip } from "@/components";

interface SendButtonProps {
  /** What a press does: Send, Queue, Steer, Interrupt, Replace, Save. */
  verb: string;
  behavior: BusyBehavior;
  /** With a menu of the other effects. */
  hasChoice: boolean;
  /** Why nothing can be sent now. */
  reason: string | null;
  busy: boolean;
  onSend: () => void;
  onBehavior: (behavior: BusyBehavior) => void;
}

/** Names its effect; the menu beside it has the others. */
export function SendButton({ verb, behavior, hasChoice, reason, busy, onSend, onBehavior }: SendButtonProps) {
  const button = (
    <button
      type="button"
      aria-disabled={reason !== null || busy ? true : undefined}
      onClick={() => {
        if (reason === null && !busy) onSend();
      }}
    >
      {busy && <Spinner />}
      {verb}
    </button>
  );
  return (
    <span className={classes("composer-send", (reason !== null || busy) && "is-off")}>
      {reason === null || reason === "" ? button : <Tooltip text={reason}>{button}</Tooltip>}
      {hasChoice && <BehaviorMenu behavior={behavior} onBehavior={onBehavior} />}
    </span>
  );
}

function BehaviorMenu({ behavior, onBehavior }: Pick<SendButtonProps, "behavior" | "onBehavior">) {
  const trigger = (
    <button type="button" aria-label="What happens when you send">
      <Icon of={ChevronDown} size="sm" />
    </button>
  );
  return (
    <Menu trigger={trigger} label="When you send while it works" side="top">
      {BEHAVIORS.map((one) => (
        <MenuItem
          key={one.behavior}
          icon={one.icon}
          hint={one.effect}
          shortcut={one.behavior === behavior ? "↵" : one.behavior === "interrupt" ? "Alt ↵" : undefined}
          onSelect={() => onBehavior(one.behavior)}
        >
          {one.name}
        </MenuItem>
      ))}
    </Menu>
  );
}

interface StopButtonProps {
  isStopping: boolean;
  onStop: () => void;
}

export function StopButton({ isStopping, onStop }: StopButtonProps) {
  const label = isStopping ? "Stopping" : "Stop";
  return (
    <Tooltip text={label} shortcut="Esc">
      <button
        type="button"
        className="composer-stop"
        aria-label={label}
        aria-disabled={isStopping ? true : undefined}
        onClick={() => {
          if (!isStopping) onStop();
        }}
      >
        {isStopping ? <Spinner /> : <Icon of={Square} className="composer-stop-icon" />}
      </button>
    </Tooltip>
  );
}

// What a message does to a chat, by whether the chat is busy.

interface BehaviorText {
  readonly behavior: BusyBehavior;
  /** On the button. */
  readonly verb: string;
  /** In the menu. */
  readonly name: string;
  readonly effect: string;
  readonly icon: LucideIcon;
  readonly shortcut?: string;
}

const BEHAVIORS: readonly BehaviorText[] = [
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

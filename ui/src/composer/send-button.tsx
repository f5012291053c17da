import { ChevronDown, Square } from "lucide-react";
import { classes, Icon, Menu, MenuItem, Spinner, Tooltip } from "@/components";
import type { BusyBehavior } from "@/chat-state";
import { BEHAVIORS } from "./behavior";

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

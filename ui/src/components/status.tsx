import { type LucideIcon, X } from "lucide-react";
import type { ReactNode } from "react";
import { classes, DrawnIcon, Icon, type IconSize } from "./icon";

export type Status = "waiting" | "pending" | "running" | "retrying" | "interrupting" | "requires_action" | "error" | "done" | "stopped";

interface StatusLook {
  /** The word; also the icon's name. */
  word: string;
  tone: "subtle" | "muted" | "accent" | "warn" | "danger" | "ok";
  spins?: boolean;
  shape: ReactNode;
}

const ring = <circle cx="8" cy="8" r="5.75" />;

/** Icon, word and colour of each status. No status is shown by one of them alone. */
export const STATUS_LOOKS: Readonly<Record<Status, StatusLook>> = {
  waiting: { word: "Idle", tone: "subtle", shape: <circle cx="8" cy="8" r="5.25" opacity=".55" /> },
  pending: { word: "Waiting for a worker", tone: "muted", shape: <circle cx="8" cy="8" r="5.5" strokeDasharray="2.2 2.6" /> },
  running: { word: "Working", tone: "accent", spins: true, shape: <path d="M8 2.25A5.75 5.75 0 1 1 2.25 8" /> },
  retrying: {
    word: "Retrying",
    tone: "warn",
    shape: (
      <>
        {ring}
        <path d="M8 4.75V8l2.25 1.5" />
      </>
    ),
  },
  interrupting: {
    word: "Stopping",
    tone: "muted",
    shape: (
      <>
        {ring}
        <rect x="6" y="6" width="4" height="4" rx=".5" />
      </>
    ),
  },
  requires_action: {
    word: "Needs you",
    tone: "warn",
    shape: (
      <>
        <path d="M8 2.1 13.9 8 8 13.9 2.1 8z" />
        <path d="M8 5.75v2.75M8 10.4v.05" />
      </>
    ),
  },
  error: {
    word: "Failed",
    tone: "danger",
    shape: (
      <>
        <path d="M8 2.5 14.25 13H1.75z" />
        <path d="M8 6.5v3M8 11.1v.05" />
      </>
    ),
  },
  done: {
    word: "Done",
    tone: "subtle",
    shape: (
      <>
        {ring}
        <path d="m5.5 8.25 1.75 1.75 3.25-3.75" />
      </>
    ),
  },
  stopped: {
    word: "Stopped",
    tone: "subtle",
    shape: (
      <>
        {ring}
        <rect x="6" y="6" width="4" height="4" rx=".5" />
      </>
    ),
  },
};

/** The icon of a status, named by its word. `decorative` where the word stands beside it. */
export function StatusIcon({ status, size, decorative }: { status: Status; size?: IconSize; decorative?: boolean }) {
  const look = STATUS_LOOKS[status];
  return (
    <DrawnIcon size={size} className={classes(`tone-${look.tone}`, look.spins && "ui-spin")} label={decorative === true ? undefined : look.word}>
      {look.shape}
    </DrawnIcon>
  );
}

/** Icon and word, and after them what changes with time ("2 m 14 s", "in 8 s"). */
export function StatusState({ status, detail }: { status: Status; detail?: ReactNode }) {
  const look = STATUS_LOOKS[status];
  return (
    <span className={classes("ui-state", `tone-${look.tone}`)}>
      <StatusIcon status={status} size="sm" decorative />
      {look.word}
      {detail !== undefined && detail !== null && <span className="tone-subtle ui-number ui-state-detail">{detail}</span>}
    </span>
  );
}

export type Tone = "accent" | "ok" | "warn" | "danger" | "info";

export function Tag({ tone, icon, children }: { tone?: Tone | undefined; icon?: LucideIcon | undefined; children: ReactNode }) {
  return (
    <span className={classes("ui-tag", tone && `tone-${tone}`)}>
      {icon && <Icon of={icon} />}
      {children}
    </span>
  );
}

interface ChipProps {
  icon?: LucideIcon | undefined;
  /** After the name, quieter: a size, a line number. */
  meta?: ReactNode;
  /** Adds a button that removes it; `removeLabel` names it. */
  onRemove?: (() => void) | undefined;
  removeLabel?: string | undefined;
  children: ReactNode;
}

/** A thing that belongs to something else: a file, a reference, a label. */
export function Chip({ icon, meta, onRemove, removeLabel, children }: ChipProps) {
  return (
    <span className="ui-chip">
      {icon && <Icon of={icon} size="sm" />}
      <span className="ui-ellipsis">{children}</span>
      {meta !== undefined && <span className="tone-subtle">{meta}</span>}
      {onRemove && (
        <button type="button" aria-label={removeLabel ?? "Remove"} onClick={onRemove}>
          <Icon of={X} size="sm" />
        </button>
      )}
    </span>
  );
}

/** How much of something is used. Amber from 85 %, red from 100 %. */
export function Meter({ label, value, max }: { label: string; value: number; max: number }) {
  const part = max > 0 ? Math.min(1, Math.max(0, value / max)) : 0;
  const level = part >= 1 ? "is-over" : part >= 0.85 ? "is-near" : undefined;
  return (
    <div className={classes("ui-meter", level)} role="meter" aria-label={label} aria-valuenow={value} aria-valuemin={0} aria-valuemax={max}>
      <i style={{ width: `${part * 100}%` }} />
    </div>
  );
}

/** Lines added and removed. */
export function PlusMinus({ added, removed }: { added: number; removed: number }) {
  return (
    <span className="ui-line-counts" aria-label={`${added} lines added, ${removed} removed`} role="img">
      <span className="ui-added">+{added}</span>
      <span className="ui-removed">−{removed}</span>
    </span>
  );
}

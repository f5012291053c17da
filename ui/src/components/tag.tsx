import { type LucideIcon, X } from "lucide-react";
import type { ReactNode } from "react";
import { classes, Icon } from "./icon";

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

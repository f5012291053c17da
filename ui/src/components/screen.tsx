/** Whole screens and what stands in for one: the frame of a phone, an empty state, loading bars. */
import type { LucideIcon } from "lucide-react";
import type { ReactNode } from "react";
import { Icon } from "./icon";

/** A screen of a phone without a `main` of its own: gives it one, with its heading. */
export function PhoneScreen({ title, children }: { readonly title: string; readonly children: ReactNode }) {
  return (
    <main className="app-contents" id="main" tabIndex={-1}>
      <h1 className="ui-screen-reader">{title}</h1>
      {children}
    </main>
  );
}

interface EmptyStateProps {
  icon?: LucideIcon | undefined;
  title?: string | undefined;
  /** What there is not, and how to get it. */
  children: ReactNode;
  actions?: ReactNode;
}

export function EmptyState({ icon, title, children, actions }: EmptyStateProps) {
  return (
    <div className="ui-empty-state">
      {icon && <Icon of={icon} size="lg" className="tone-subtle" />}
      {title !== undefined && <h2 className="ui-strong">{title}</h2>}
      <p className="tone-muted">{children}</p>
      {actions !== undefined && <div className="ui-actions">{actions}</div>}
    </div>
  );
}

/** Grey bars where text will be; they appear after 150 ms, so that a fast answer shows none. */
export function Skeleton({ rows = 3, label = "Loading" }: { rows?: number; label?: string }) {
  return (
    <div className="ui-skeleton" role="status" aria-label={label}>
      {Array.from({ length: rows }, (_, row) => (
        <i key={row} style={{ width: `${[92, 64, 78, 55, 84][row % 5] ?? 70}%` }} />
      ))}
    </div>
  );
}

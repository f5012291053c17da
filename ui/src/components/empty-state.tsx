import type { LucideIcon } from "lucide-react";
import type { ReactNode } from "react";
import { Icon } from "./icon";

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

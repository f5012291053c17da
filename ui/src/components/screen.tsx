/** Whole screens and what stands in for one: the frame of a phone, an empty state, loading bars, the list of shortcuts. */
import type { LucideIcon } from "lucide-react";
import type { ReactNode } from "react";
import { BOX_KEYS, isMac, keyText, SHORTCUTS } from "@/platform/keys";
import { usePreference } from "@/platform/preferences";
import { HELP_PATH } from "@/platform/routes";
import { Dialog } from "./dialog";
import { Switch } from "./field";
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

const GROUPS = ["Everywhere", "Chats", "Messages", "Panels"] as const;

function KeyRow({ keys, text }: { keys: string; text: string }) {
  return (
    <div>
      <dt>{text}</dt>
      <dd>
        <kbd>{keyText(keys, isMac())}</kbd>
      </dd>
    </div>
  );
}

/** All shortcuts, and the switch for those of a single letter. */
export function ShortcutList() {
  const [singleKeys, setSingleKeys] = usePreference("singleKeys");
  return (
    <>
      <div className="app-shortcuts">
        {GROUPS.map((group) => (
          <section key={group}>
            <h3>{group}</h3>
            <dl>
              {SHORTCUTS.filter((shortcut) => shortcut.group === group).map((shortcut) => (
                <KeyRow key={shortcut.command} keys={shortcut.keys} text={shortcut.text} />
              ))}
            </dl>
          </section>
        ))}
        <section>
          <h3>Message box</h3>
          <dl>
            {BOX_KEYS.map((row) => (
              <KeyRow key={row.keys} keys={row.keys} text={row.text} />
            ))}
          </dl>
        </section>
      </div>
      <div className="app-shortcuts-switch">
        <span>
          Shortcuts of a single key <span className="tone-muted">work outside text boxes</span>
        </span>
        <Switch label="Shortcuts of a single key" checked={singleKeys} onChange={setSingleKeys} />
      </div>
    </>
  );
}

export function HelpDialog({ open, onOpenChange }: { open: boolean; onOpenChange: (open: boolean) => void }) {
  return (
    <Dialog open={open} onOpenChange={onOpenChange} title="Shortcuts" wide>
      <ShortcutList />
      <a className="ui-link" href={HELP_PATH} target="_blank" rel="noreferrer">
        Documentation of this version
      </a>
    </Dialog>
  );
}

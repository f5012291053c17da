import { type ComponentType, lazy, Suspense, useSyncExternalStore } from "react";

export interface ToastMessage {
  text: string;
  detail?: string | undefined;
  tone?: "ok" | "danger" | undefined;
  action?: { label: string; run: () => void } | undefined;
}

const load = () => import("./toaster");
// Without it the page works; a build that has gone is noticed by stale-build.ts.
const Toaster = lazy<ComponentType>(() =>
  load().then(
    ({ Toaster: made }) => ({ default: made }),
    () => ({ default: () => null }),
  ),
);

/** A short message that goes away; with `action` it stays ten seconds. */
export function toast(message: string | ToastMessage): void {
  void load().then(
    ({ showToast }) => showToast(message),
    () => undefined,
  );
}

/** Where toasts appear. */
export const Toasts = () => (
  <Suspense fallback={null}>
    <Toaster />
  </Suspense>
);

/** Shows why something was refused. What has changed is shown by the chat's events. */
export function toastOnError(work: Promise<unknown>): void {
  work.catch((error: unknown) => toast({ text: error instanceof Error ? error.message : "It failed.", tone: "danger" }));
}

interface Spoken {
  polite: string;
  assertive: string;
}

let spoken: Spoken = { polite: "", assertive: "" };
const listeners = new Set<() => void>();

const subscribe = (listener: () => void) => {
  listeners.add(listener);
  return () => {
    listeners.delete(listener);
  };
};

/** The same text twice is spoken twice: a no-break space at its end makes it a new one. */
const renewed = (before: string, text: string): string => (before === text ? `${text} ` : text);

/** Says a sentence to screen readers, at the borders of a turn only. Assertive: errors and approvals. */
export function announce(text: string, assertive = false): void {
  spoken = assertive ? { ...spoken, assertive: renewed(spoken.assertive, text) } : { ...spoken, polite: renewed(spoken.polite, text) };
  for (const listener of listeners) listener();
}

/** The only live regions of the page. */
export function Announcer() {
  const now = useSyncExternalStore(subscribe, () => spoken);
  return (
    <>
      <div className="ui-screen-reader" role="status" aria-live="polite">
        {now.polite}
      </div>
      <div className="ui-screen-reader" role="alert" aria-live="assertive">
        {now.assertive}
      </div>
    </>
  );
}

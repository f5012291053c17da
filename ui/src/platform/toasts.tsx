/** What the page says in passing: toasts, and sentences for screen readers. */
import { type ComponentType, lazy, Suspense } from "react";
import { createStore } from "./store";

export interface ToastMessage {
  text: string;
  detail?: string | undefined;
  tone?: "ok" | "danger" | undefined;
  action?: { label: string; run: () => void } | undefined;
}

const load = () => import("./toaster");
// Without it the page works; a build that has gone is noticed by browser.ts.
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

const spoken = createStore<Spoken>({ polite: "", assertive: "" });

/** The same text twice is spoken twice: a no-break space at its end makes it a new one. */
const renewed = (before: string, text: string): string => (before === text ? `${text} ` : text);

/** Says a sentence to screen readers, at the borders of a turn only. Assertive: errors and approvals. */
export function announce(text: string, assertive = false): void {
  const before = spoken.get();
  spoken.set(assertive ? { ...before, assertive: renewed(before.assertive, text) } : { ...before, polite: renewed(before.polite, text) });
}

/** The only live regions of the page. */
export function Announcer() {
  const now = spoken.use();
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

import { type ComponentType, lazy, Suspense } from "react";

export interface ToastMessage {
  text: string;
  detail?: string | undefined;
  tone?: "ok" | "danger" | undefined;
  action?: { label: string; run: () => void } | undefined;
}

const load = () => import("./toaster");
// Without it the page works; a build that has gone is noticed by stale-build.ts.
const Toaster = lazy<ComponentType>(() => load().then(({ Toaster: made }) => ({ default: made }), () => ({ default: () => null })));

/** A short message that goes away; with `action` it stays ten seconds. */
export function toast(message: string | ToastMessage): void {
  void load().then(({ showToast }) => showToast(message), () => undefined);
}

/** Where toasts appear. */
export const Toasts = () => (
  <Suspense fallback={null}>
    <Toaster />
  </Suspense>
);

import { useSyncExternalStore } from "react";

function subscribe(changed: () => void): () => void {
  document.addEventListener("visibilitychange", changed);
  return () => document.removeEventListener("visibilitychange", changed);
}

/** Whether the page is in front of its window's other tabs. */
export const useInFront = (): boolean => useSyncExternalStore(subscribe, () => document.visibilityState === "visible");

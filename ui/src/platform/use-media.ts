import { useSyncExternalStore } from "react";

/** Whether a media query holds now. */
export function useMedia(query: string): boolean {
  return useSyncExternalStore(
    (changed) => {
      const list = window.matchMedia(query);
      list.addEventListener("change", changed);
      return () => list.removeEventListener("change", changed);
    },
    () => window.matchMedia(query).matches,
  );
}

/** A phone: list, chat and panel are three screens. */
export const useIsPhone = (): boolean => useMedia("(max-width: 640px)");
/** The panel slides over the chat. */
export const useIsNarrow = (): boolean => useMedia("(max-width: 1024px)");

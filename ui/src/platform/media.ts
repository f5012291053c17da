import { type RefCallback, useCallback, useState, useSyncExternalStore } from "react";

/** Whether a media query holds now. */
function useMedia(query: string): boolean {
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

/** The width of an element in pixels, followed; 0 until it is known. */
export function useWidth(): [RefCallback<HTMLElement>, number] {
  const [width, setWidth] = useState(0);
  const ref = useCallback((element: HTMLElement | null) => {
    if (element === null) return;
    const observer = new ResizeObserver(() => setWidth(Math.round(element.clientWidth)));
    observer.observe(element);
    setWidth(Math.round(element.clientWidth));
    return () => observer.disconnect();
  }, []);
  return [ref, width];
}

/** The place of the list: it follows its end, keeps the row that is read, and goes where it is told. */
import { useCallback, useEffect, useLayoutEffect, useRef, useState, type RefObject } from "react";
import { elementScroll, type Virtualizer } from "@tanstack/react-virtual";
import { Follower, isUpKey, type ScrollBox } from "./follow";

export type RowVirtualizer = Virtualizer<HTMLDivElement, HTMLElement>;

export interface ScrollPlace {
  readonly isFollowing: boolean;
  toEnd: () => void;
  toRow: (index: number, align: "start" | "center" | "auto") => void;
}

function boxOf(log: HTMLElement): ScrollBox {
  return { top: log.scrollTop, height: log.scrollHeight, viewport: log.clientHeight };
}

type MoveList = RowVirtualizer["options"]["scrollToFn"];

/** How the virtualizer moves the list: the follower learns that it was not the user. */
export function moveListOf(follower: Follower): MoveList {
  return (offset, options, instance) => {
    elementScroll(offset, options, instance);
    if (instance.scrollElement !== null) follower.moved(boxOf(instance.scrollElement));
  };
}

export function useScroll(log: RefObject<HTMLDivElement | null>, virtualizer: RowVirtualizer, follower: Follower): ScrollPlace {
  const [isFollowing, setFollowing] = useState(true);

  useEffect(() => {
    const element = log.current;
    return element === null ? undefined : listen(element, follower, setFollowing);
  }, [log, follower]);

  const pin = useCallback(() => pinToEnd(log, follower), [log, follower]);

  // After every render: rows, heights or the window may have changed.
  useLayoutEffect(pin);
  useResize(log, pin);

  const newest = useRef(virtualizer);
  useEffect(() => {
    newest.current = virtualizer;
  });

  const toEnd = useCallback(() => {
    follower.attach();
    setFollowing(true);
    pin();
  }, [follower, pin]);

  const toRow = useCallback(
    (index: number, align: "start" | "center" | "auto") => {
      follower.detach();
      setFollowing(false);
      newest.current.scrollToIndex(index, { align });
    },
    [follower],
  );
  return { isFollowing, toEnd, toRow };
}

function pinToEnd(log: RefObject<HTMLDivElement | null>, follower: Follower): void {
  const element = log.current;
  if (element === null) return;
  // The user may have moved, and the browser tells of it only with the next frame.
  follower.scrolled(boxOf(element));
  if (!follower.isFollowing) return;
  const end = element.scrollHeight - element.clientHeight;
  if (Math.abs(element.scrollTop - end) >= 1) element.scrollTo({ top: end, behavior: "instant" });
  follower.moved(boxOf(element));
}

function useResize(log: RefObject<HTMLDivElement | null>, pin: () => void): void {
  useEffect(() => {
    const element = log.current;
    if (element === null) return;
    const observer = new ResizeObserver(pin);
    observer.observe(element);
    return () => observer.disconnect();
  }, [log, pin]);
}

function listen(element: HTMLElement, follower: Follower, show: (isFollowing: boolean) => void): () => void {
  let touchY: number | null = null;
  const up = () => {
    if (element.scrollTop <= 0 && element.scrollHeight <= element.clientHeight) return;
    follower.moveUp();
    show(false);
  };
  const handlers = {
    wheel: (event: WheelEvent) => {
      if (event.deltaY < 0) up();
    },
    touchstart: (event: TouchEvent) => {
      touchY = event.touches[0]?.clientY ?? null;
    },
    touchmove: (event: TouchEvent) => {
      const y = event.touches[0]?.clientY ?? null;
      if (y !== null && touchY !== null && y > touchY + 2) up();
      touchY = y;
    },
    keydown: (event: KeyboardEvent) => {
      if (isUpKey(event.key, event.shiftKey)) up();
    },
    scroll: () => {
      follower.scrolled(boxOf(element));
      show(follower.isFollowing);
    },
  };
  const entries = Object.entries(handlers) as [string, EventListener][];
  for (const [name, handler] of entries) element.addEventListener(name, handler, { passive: true });
  return () => {
    for (const [name, handler] of entries) element.removeEventListener(name, handler);
  };
}

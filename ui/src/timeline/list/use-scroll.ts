/** The place of the list: it follows its end, keeps the row that is read, and goes where it is told. */
import { elementScroll, type Virtualizer } from "@tanstack/react-virtual";
import { type RefObject, useCallback, useEffect, useLayoutEffect, useRef, useState } from "react";
import { cameBack } from "@/platform/routes";
import { Follower, isAtEnd, isUpKey, type ScrollBox } from "./follow";

/** A card has its new height by then. */
const SETTLE_MS = 250;

type RowVirtualizer = Virtualizer<HTMLDivElement, HTMLElement>;

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
    click: (event: MouseEvent) => {
      // A card that is opened or closed stays under the pointer: its growth does not push it up.
      if (!(event.target instanceof Element) || event.target.closest("summary") === null || !follower.isFollowing) return;
      follower.detach();
      show(false);
      setTimeout(() => {
        if (!isAtEnd(boxOf(element))) return;
        follower.attach();
        show(true);
      }, SETTLE_MS);
    },
    scroll: () => {
      follower.scrolled(boxOf(element));
      show(follower.isFollowing);
    },
  };
  const entries = Object.entries(handlers) as [string, EventListener][];
  for (const [name, handler] of entries) element.addEventListener(name, handler, { passive: true, capture: name === "click" });
  return () => {
    for (const [name, handler] of entries) element.removeEventListener(name, handler, { capture: name === "click" });
  };
}

/** The row that was read when a chat was left, and how far above the window it began. */
interface KeptPlace {
  readonly key: string;
  readonly above: number;
}

const MAX_KEPT_PLACES = 50;
const keptPlaces = new Map<string, KeptPlace>();

/** Remembers where a chat was read when it is left, and shows it there again after Back. */
export function useKeptPlace(chatId: string, log: RefObject<HTMLDivElement | null>, keys: readonly string[], place: ScrollPlace, follower: Follower): void {
  const wanted = useRef(cameBack() ? (keptPlaces.get(chatId) ?? null) : null);
  useEffect(() => {
    const kept = wanted.current;
    if (kept === null) return;
    const index = keys.indexOf(kept.key);
    if (index < 0) return;
    wanted.current = null;
    showAgain(log, kept, () => place.toRow(index, "start"));
  }, [keys, place, log]);
  useLayoutEffect(() => {
    const element = log.current;
    return () => {
      keptPlaces.delete(chatId);
      const found = element === null || follower.isFollowing ? null : firstRow(element);
      if (found === null) return;
      keptPlaces.set(chatId, found);
      const [oldest] = keptPlaces.keys();
      if (keptPlaces.size > MAX_KEPT_PLACES && oldest !== undefined) keptPlaces.delete(oldest);
    };
  }, [chatId, log, follower]);
}

/** Rows get their real heights as they come into the window: the place is set until it holds. */
function showAgain(log: RefObject<HTMLDivElement | null>, kept: KeptPlace, toRow: () => void, tries = 8): void {
  requestAnimationFrame(() => {
    const element = log.current;
    if (element === null) return;
    const row = element.querySelector(`article[data-key="${CSS.escape(kept.key)}"]`);
    const off = row === null ? null : row.getBoundingClientRect().top - element.getBoundingClientRect().top + kept.above;
    if (off === null || tries === 8) toRow();
    else if (Math.abs(off) >= 1) element.scrollBy({ top: off, behavior: "instant" });
    if (tries > 1) showAgain(log, kept, toRow, tries - 1);
  });
}

function firstRow(log: HTMLElement): KeptPlace | null {
  const { top } = log.getBoundingClientRect();
  const rows = [...log.querySelectorAll<HTMLElement>("article")].map((row) => ({ key: row.dataset.key ?? "", box: row.getBoundingClientRect() }));
  const first = rows.filter((row) => row.box.bottom > top).sort((one, two) => one.box.top - two.box.top)[0];
  return first === undefined ? null : { key: first.key, above: top - first.box.top };
}

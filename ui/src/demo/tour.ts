/** The first minute as five steps. What is done is read from the chat's own events, never from a script. */
import { useEffect, useState } from "react";
import type { ChatState } from "@/chat-state/types";
import { useChatSelector } from "@/connection";

export const TOUR_STEPS = ["start", "queue", "stop", "kill", "runs"] as const;
export type TourStep = (typeof TOUR_STEPS)[number];
type TourDone = readonly TourStep[];

export interface TourSigns {
  hasMessages: boolean;
  hasQueue: boolean;
  wasStopped: boolean;
  hasTakeover: boolean;
  runsOpen: boolean;
  wasReloaded: boolean;
}

/** Steps that these signs show as done, in the order of the tour. */
export function stepsOf(signs: TourSigns): TourStep[] {
  const done: Record<TourStep, boolean> = {
    start: signs.hasMessages,
    queue: signs.hasQueue,
    stop: signs.wasStopped,
    kill: signs.hasTakeover || signs.wasReloaded,
    runs: signs.runsOpen && (signs.hasTakeover || signs.wasReloaded),
  };
  return TOUR_STEPS.filter((step) => done[step]);
}

/** What was done once stays done, in the order of the tour. */
export const addSteps = (before: TourDone, found: TourDone): TourDone =>
  found.every((step) => before.includes(step)) ? before : TOUR_STEPS.filter((step) => before.includes(step) || found.includes(step));

/** The step to speak of now; null after the last. */
export const nextStep = (done: TourDone): TourStep | null => TOUR_STEPS.find((step) => !done.includes(step)) ?? null;

const selectSigns = (state: ChatState) =>
  [state.messages.length > 0, state.queue.length > 0, state.status === "interrupting", state.takeover !== null].map(Number).join("");

const storageKey = (chatId: string) => `chatd.tour.${chatId}`;

function readDone(chatId: string): TourDone {
  try {
    const stored = (sessionStorage.getItem(storageKey(chatId)) ?? "").split(",");
    return TOUR_STEPS.filter((step) => stored.includes(step));
  } catch {
    return [];
  }
}

function wasReloaded(): boolean {
  const [entry] = performance.getEntriesByType("navigation");
  return entry instanceof PerformanceNavigationTiming && entry.type === "reload" && performance.now() < 60_000;
}

/** What was done in this chat, in this tab. */
export function useTour(chatId: string, runsOpen: boolean): TourDone {
  const signs = useChatSelector(chatId, selectSigns);
  const [done, setDone] = useState(() => readDone(chatId));
  const found = stepsOf({
    hasMessages: signs.startsWith("1"),
    hasQueue: signs[1] === "1",
    wasStopped: signs[2] === "1",
    hasTakeover: signs[3] === "1",
    runsOpen,
    wasReloaded: wasReloaded(),
  });
  const next = addSteps(done, found);
  if (next !== done) setDone(next);
  useEffect(() => {
    try {
      sessionStorage.setItem(storageKey(chatId), next.join(","));
    } catch {
      // Without storage a reload begins the tour again.
    }
  }, [chatId, next]);
  return next;
}

/** The order of the queue on the screen: that of the server, or the user's until the server has it. */
import { useState } from "react";
import type { QueuedMessage } from "@/chat-state";

/** The messages with one of them before another; null: as the last. */
export function moved(queue: readonly QueuedMessage[], id: number, before: number | null): readonly QueuedMessage[] {
  const message = queue.find((one) => one.id === id);
  if (message === undefined || id === before) return queue;
  const others = queue.filter((one) => one.id !== id);
  const at = before === null ? -1 : others.findIndex((one) => one.id === before);
  return at < 0 ? [...others, message] : [...others.slice(0, at), message, ...others.slice(at)];
}

/** Where a message that is dropped on another one goes: above it when it comes from below, else below. */
export function neighbour(queue: readonly QueuedMessage[], id: number, target: number): number | null {
  const from = queue.findIndex((one) => one.id === id);
  const to = queue.findIndex((one) => one.id === target);
  return from > to ? target : (queue[to + 1]?.id ?? null);
}

export function useShownOrder(queue: readonly QueuedMessage[]) {
  const [wanted, setWanted] = useState<{ readonly of: readonly QueuedMessage[]; readonly order: readonly QueuedMessage[] } | null>(null);
  const shown = wanted?.of === queue ? wanted.order : queue;
  const reorder = (order: readonly QueuedMessage[] | null) => setWanted(order === null ? null : { of: queue, order });
  return { shown, reorder };
}

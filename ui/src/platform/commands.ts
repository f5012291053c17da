/** Who runs which command. The newest taker wins; one that returns false leaves the key to the next. */
import { useEffect, useRef } from "react";
import type { Command } from "./keymap";

export type CommandTaker = (digit: number | null) => unknown;

const takers = new Map<Command, CommandTaker[]>();

export function onCommand(command: Command, taker: CommandTaker): () => void {
  const list = takers.get(command) ?? [];
  takers.set(command, [...list, taker]);
  return () => {
    takers.set(
      command,
      (takers.get(command) ?? []).filter((one) => one !== taker),
    );
  };
}

/** Runs a command. False: nobody took it. */
export function runCommand(command: Command, digit: number | null = null): boolean {
  for (const taker of (takers.get(command) ?? []).toReversed()) {
    if (taker(digit) !== false) return true;
  }
  return false;
}

/** Takes a command while the component is shown. */
export function useCommand(command: Command, taker: CommandTaker): void {
  const newest = useRef(taker);
  useEffect(() => {
    newest.current = taker;
  });
  useEffect(() => onCommand(command, (digit) => newest.current(digit)), [command]);
}

/** The menu of slash commands: what is shown, what is chosen, and its keys. */
import { useState, type KeyboardEvent } from "react";
import type { SettledState } from "@/chat-state";
import { isComposing } from "./keys";
import { matchSlash, type SlashCommand, type SlashName } from "./slash-commands";

export function useSlash(text: string, state: SettledState | null, onRun: (command: SlashCommand) => void) {
  const [chosen, setChosen] = useState<SlashName | null>(null);
  /** The text for which Esc closed the menu. */
  const [closedFor, setClosedFor] = useState<string | null>(null);
  const commands = closedFor === text ? null : matchSlash(text);
  const usable = commands?.find((one) => one.reason(state) === null) ?? commands?.[0];
  const active = commands?.find((one) => one.name === chosen)?.name ?? usable?.name ?? "compact";
  const run = (command: SlashCommand) => {
    if (command.reason(state) === null) onRun(command);
  };
  /** True: the key was for the menu. */
  const onKeyDown = (event: KeyboardEvent): boolean => {
    if (commands === null || isComposing(event)) return false;
    const at = commands.findIndex((one) => one.name === active);
    const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    if (step !== 0) setChosen(commands[(at + step + commands.length) % commands.length]?.name ?? null);
    else if (event.key === "Escape") setClosedFor(text);
    else if (event.key === "Enter" || event.key === "Tab") {
      const command = commands[at];
      if (command !== undefined) run(command);
    } else return false;
    event.preventDefault();
    event.stopPropagation();
    return true;
  };
  return { commands, active, run, onKeyDown };
}

import { Archive, ArrowDownToLine, Cpu, GitFork, ListTodo, PauseCircle, Plus, StopCircle, type LucideIcon } from "lucide-react";
import { classes, Icon } from "@/components";
import type { SettledState } from "@/chat-state";
import type { SlashCommand, SlashName } from "./slash-commands";

const ICONS: Record<SlashName, LucideIcon> = {
  compact: Archive,
  fork: GitFork,
  export: ArrowDownToLine,
  model: Cpu,
  plan: ListTodo,
  stop: StopCircle,
  hold: PauseCircle,
  new: Plus,
};

export const SLASH_MENU_ID = "slash-menu";

export function slashItemId(name: SlashName): string {
  return `slash-${name}`;
}

interface SlashMenuProps {
  commands: readonly SlashCommand[];
  active: SlashName;
  state: SettledState | null;
  onRun: (command: SlashCommand) => void;
}

/** Commands for what is typed. Focus stays in the box; arrows choose. */
export function SlashMenu({ commands, active, state, onRun }: SlashMenuProps) {
  return (
    <div className="ui-menu composer-slash" role="listbox" id={SLASH_MENU_ID} aria-label="Commands">
      {commands.map((command) => {
        const reason = command.reason(state);
        return (
          <div
            key={command.name}
            id={slashItemId(command.name)}
            role="option"
            aria-selected={command.name === active}
            aria-disabled={reason !== null}
            className={classes("ui-menu-item", command.name === active && "is-on")}
            onMouseDown={(event) => event.preventDefault()}
            onClick={() => onRun(command)}
          >
            <Icon of={ICONS[command.name]} />
            <b>/{command.name}</b>
            <span />
            <p>{reason ?? command.effect}</p>
          </div>
        );
      })}
    </div>
  );
}

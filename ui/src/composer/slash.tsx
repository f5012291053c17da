/** Commands that begin with a slash. */
import { Archive, ArrowDownToLine, Brain, Cpu, GitFork, ListTodo, type LucideIcon, PauseCircle, Plus, StopCircle } from "lucide-react";
import { type KeyboardEvent, useState } from "react";
import { api, urlOf } from "@/api/client";
import { isWorking } from "@/chat-state/reducer";
import type { SettledState } from "@/chat-state/types";
import { classes, Icon } from "@/components";
import { chatPath, MEMORY_PATH, NEW_CHAT_PATH } from "@/platform/routes";
import { toast } from "@/platform/toasts";
import type { QueueActions } from "./queue-actions";
import { isComposing } from "./text-box";

type SlashName = "compact" | "fork" | "export" | "model" | "plan" | "remember" | "stop" | "hold" | "new";

export interface SlashCommand {
  readonly name: SlashName;
  readonly effect: string;
  /** Why it cannot be used now; null: it can. */
  readonly reason: (state: SettledState | null) => string | null;
}

const inChat = (state: SettledState | null) => (state === null ? "Only in a chat" : null);
const whenIdle = (state: SettledState | null) =>
  inChat(state) ?? (state?.status === "waiting" || state?.status === "error" ? null : "Only while the chat waits");
const whenBusy = (state: SettledState | null) => inChat(state) ?? (state !== null && isWorking(state.status) ? null : "Nothing is running");

const SLASH_COMMANDS: readonly SlashCommand[] = [
  { name: "compact", effect: "Replace the history by a summary for the model", reason: whenIdle },
  { name: "fork", effect: "Copy this chat into a new one", reason: inChat },
  { name: "export", effect: "Save the chat as a file", reason: inChat },
  { name: "model", effect: "Choose model and effort", reason: () => null },
  { name: "plan", effect: "Plan mode on or off; with text: plan that, and change nothing else", reason: () => null },
  { name: "remember", effect: "Keep a note for all your chats: /remember and the text; without one, show your notes", reason: () => null },
  { name: "stop", effect: "Stop the answer, keep what was said", reason: whenBusy },
  { name: "hold", effect: "Stop the answer and hold the queue", reason: whenBusy },
  { name: "new", effect: "Start a new chat", reason: () => null },
];

/** The commands that fit what is typed; null: the text is no command. */
function matchSlash(text: string): readonly SlashCommand[] | null {
  const typed = /^\/(\w*)$/.exec(text)?.[1];
  if (typed === undefined) return null;
  const found = SLASH_COMMANDS.filter((one) => one.name.startsWith(typed.toLowerCase()));
  return found.length === 0 ? null : found;
}

const ICONS: Record<SlashName, LucideIcon> = {
  compact: Archive,
  fork: GitFork,
  export: ArrowDownToLine,
  model: Cpu,
  plan: ListTodo,
  remember: Brain,
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

// The menu of slash commands: what is shown, what is chosen, and its keys.

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

// Does what a slash command says.

interface SlashContext {
  readonly chatId: string;
  readonly actions: QueueActions;
  readonly navigate: (path: string) => void;
  readonly stop: () => void;
}

export async function runSlash(name: SlashName, { chatId, actions, navigate, stop }: SlashContext): Promise<void> {
  const path = { chat_id: chatId };
  switch (name) {
    case "compact":
      await api.POST("/api/v1/chats/{chat_id}/compact", { path });
      return;
    case "fork": {
      const fork = await api.POST("/api/v1/chats/{chat_id}/fork", { path, body: {} });
      navigate(chatPath(fork.id));
      toast("This is a copy. The first chat goes on without it.");
      return;
    }
    case "export":
      download(urlOf("/api/v1/chats/{chat_id}/export", { path, query: { format: "markdown" } }));
      return;
    case "stop":
      stop();
      return;
    case "hold":
      await actions.hold();
      return;
    case "new":
      navigate(NEW_CHAT_PATH);
      return;
    case "remember":
      navigate(MEMORY_PATH);
      return;
    case "model":
    case "plan":
      return;
  }
}

/** Keeps the text of `/remember text`. False: the draft is no such command. */
export function remember(text: string, onFailed: () => void): boolean {
  const note = /^\/remember\s+(\S[\s\S]*)$/i.exec(text.trim())?.[1];
  if (note === undefined) return false;
  api.POST("/api/v1/memory/notes", { body: { text: note } }).then(
    () => toast({ text: "Kept. The models of your chats are told it.", tone: "ok" }),
    (error: unknown) => {
      toast({ text: `Not kept. ${error instanceof Error ? error.message : ""}`.trim(), tone: "danger" });
      onFailed();
    },
  );
  return true;
}

function download(url: string): void {
  const link = document.createElement("a");
  link.href = url;
  link.download = "";
  link.click();
}

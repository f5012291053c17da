/**
 * The shortcuts of the page as data. The shell matches keys against it and runs the command, if some
 * area has taken that command. Keys of text boxes (Enter, ↑) belong to the box and are listed for help only.
 */
export type Command =
  | "palette.open"
  | "chat.new"
  | "chat.nth"
  | "chat.needsYou"
  | "chat.find"
  | "escape"
  | "message.next"
  | "message.previous"
  | "prompt.next"
  | "prompt.previous"
  | "timeline.top"
  | "timeline.latest"
  | "message.edit"
  | "message.copy"
  | "message.fork"
  | "card.toggle"
  | "sidebar.toggle"
  | "panel.toggle"
  | "panel.changes"
  | "panel.runs"
  | "panel.terminal"
  | "help.open"
  | "composer.focus";

export interface Shortcut {
  command: Command;
  /** Keys in order: "g g" is G twice. "mod" is Ctrl, or Cmd on a Mac. A digit is written as 1-9. */
  keys: string;
  text: string;
  group: "Everywhere" | "Chats" | "Messages" | "Panels";
}

export const SHORTCUTS: readonly Shortcut[] = [
  { command: "palette.open", keys: "mod+k", text: "Search and commands", group: "Everywhere" },
  { command: "escape", keys: "escape", text: "Close, cancel an edit, or stop the agent", group: "Everywhere" },
  { command: "composer.focus", keys: "/", text: "Write a message", group: "Everywhere" },
  { command: "help.open", keys: "?", text: "This list", group: "Everywhere" },
  { command: "chat.new", keys: "alt+n", text: "New chat", group: "Chats" },
  { command: "chat.nth", keys: "alt+1-9", text: "The nth chat of the list", group: "Chats" },
  { command: "chat.needsYou", keys: "n", text: "Next chat that needs you", group: "Chats" },
  { command: "chat.find", keys: "mod+shift+f", text: "Find in this chat", group: "Messages" },
  { command: "message.next", keys: "j", text: "Next message", group: "Messages" },
  { command: "message.previous", keys: "k", text: "Previous message", group: "Messages" },
  { command: "prompt.next", keys: "shift+j", text: "Next message of yours", group: "Messages" },
  { command: "prompt.previous", keys: "shift+k", text: "Previous message of yours", group: "Messages" },
  { command: "timeline.top", keys: "g g", text: "First message", group: "Messages" },
  { command: "timeline.latest", keys: "shift+g", text: "Latest message", group: "Messages" },
  { command: "message.edit", keys: "e", text: "Edit the message in focus", group: "Messages" },
  { command: "message.copy", keys: "c", text: "Copy it", group: "Messages" },
  { command: "message.fork", keys: "f", text: "Fork the chat from it", group: "Messages" },
  { command: "card.toggle", keys: "o", text: "Open or close its cards", group: "Messages" },
  { command: "sidebar.toggle", keys: "[", text: "Show or hide the sidebar", group: "Panels" },
  { command: "panel.toggle", keys: "]", text: "Show or hide the panel", group: "Panels" },
  { command: "panel.changes", keys: "d", text: "Changes", group: "Panels" },
  { command: "panel.runs", keys: "r", text: "Runs", group: "Panels" },
  { command: "panel.terminal", keys: "t", text: "Terminal", group: "Panels" },
];

/** Keys that a text box takes itself. */
export const BOX_KEYS: readonly { keys: string; text: string }[] = [
  { keys: "enter", text: "Send, queue or steer, as the button says" },
  { keys: "shift+enter", text: "New line" },
  { keys: "alt+enter", text: "Interrupt and send now" },
  { keys: "up", text: "In an empty box: edit the last queued message, else earlier prompts" },
  { keys: "alt+up", text: "Move a queued message up" },
  { keys: "alt+down", text: "Move a queued message down" },
];

/** A shortcut of one character without Ctrl, Alt or Cmd. People who speak to their computer need these off. */
export const isSingleKey = (keys: string): boolean => !/mod\+|alt\+|^escape$/.test(keys);

const NAMES: Readonly<Record<string, string>> = {
  escape: "Esc",
  enter: "Enter",
  shift: "⇧",
  alt: "Alt",
  up: "↑",
  down: "↓",
};

/** How a shortcut is written for people: "⌘ K", "Alt N", "G G". */
export function keyText(keys: string, isMac: boolean): string {
  const name = (key: string) => (key === "mod" ? (isMac ? "⌘" : "Ctrl") : (NAMES[key] ?? key.toUpperCase().replace("1-9", "1–9")));
  return keys
    .split(" ")
    .map((chord) => chord.split(/\+(?!$)/).map(name).join(" "))
    .join(" ");
}

export const isMac = (): boolean => /Mac|iPhone|iPad/.test(navigator.userAgent);

export function shortcutOf(command: Command): string {
  const found = SHORTCUTS.find((shortcut) => shortcut.command === command);
  return found === undefined ? "" : keyText(found.keys, isMac());
}

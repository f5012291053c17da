import { useEffect, useRef } from "react";
import { readPreference } from "./preferences";

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

interface Shortcut {
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
const isSingleKey = (keys: string): boolean => !/mod\+|alt\+|^escape$/.test(keys);

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
    .map((chord) =>
      chord
        .split(/\+(?!$)/)
        .map(name)
        .join(" "),
    )
    .join(" ");
}

export const isMac = (): boolean => /Mac|iPhone|iPad/.test(navigator.userAgent);

export function shortcutOf(command: Command): string {
  const found = SHORTCUTS.find((shortcut) => shortcut.command === command);
  return found === undefined ? "" : keyText(found.keys, isMac());
}

// Decides which command a key press means. Pure but for the state of half-typed sequences ("g g").

export interface Press {
  key: string;
  code: string;
  ctrlKey: boolean;
  metaKey: boolean;
  altKey: boolean;
  shiftKey: boolean;
  repeat: boolean;
  isComposing: boolean;
}

export interface Situation {
  isMac: boolean;
  /** Focus is in a text box, a select or anything editable. */
  inText: boolean;
  /** A dialog or menu is open: only it gets keys. */
  inOverlay: boolean;
  singleKeys: boolean;
}

interface Match {
  shortcut: Shortcut;
  /** The digit, for "1-9". */
  digit: number | null;
}

const SEQUENCE_MS = 1000;

/** The letter of the key even where Alt makes another character of it (Alt N is "ñ" on a Mac). */
function keyName(press: Press): string {
  if (press.altKey) {
    const letter = /^(?:Key|Digit)(.)$/.exec(press.code)?.[1];
    if (letter !== undefined) return letter.toLowerCase();
  }
  return press.key.length === 1 ? press.key.toLowerCase() : press.key.toLowerCase();
}

function chordMatches(chord: string, press: Press, isMac: boolean): number | boolean {
  const parts = chord.split(/\+(?!$)/);
  const key = parts.at(-1) ?? "";
  const wants = (name: string) => parts.slice(0, -1).includes(name);
  const isLetter = /^[a-z]$/.test(key);
  if (wants("mod") !== (isMac ? press.metaKey : press.ctrlKey)) return false;
  if ((isMac ? press.ctrlKey : press.metaKey) || wants("alt") !== press.altKey) return false;
  // Shift makes "?" and "G"; for signs the character alone decides.
  if ((isLetter || wants("shift")) && wants("shift") !== press.shiftKey) return false;
  const pressed = keyName(press);
  if (key === "1-9") return /^[1-9]$/.test(pressed) ? Number(pressed) : false;
  return pressed === key;
}

export class KeyMatcher {
  private before: { chord: string; at: number } | null = null;

  constructor(private readonly shortcuts: readonly Shortcut[] = SHORTCUTS) {}

  /** The shortcut that this press completes, or null. */
  match(press: Press, situation: Situation, now: number): Match | null {
    if (press.isComposing || press.key === "Process" || situation.inOverlay) return null;
    const before = this.before;
    this.before = null;
    for (const shortcut of this.shortcuts) {
      if (isSingleKey(shortcut.keys) && (situation.inText || !situation.singleKeys)) continue;
      const [first = "", second] = shortcut.keys.split(" ");
      if (second === undefined) {
        const found = chordMatches(first, press, situation.isMac);
        if (found !== false) return { shortcut, digit: typeof found === "number" ? found : null };
      } else if (chordMatches(second, press, situation.isMac) !== false && before?.chord === first && now - before.at < SEQUENCE_MS) {
        return { shortcut, digit: null };
      } else if (chordMatches(first, press, situation.isMac) !== false && !press.repeat) {
        this.before = { chord: first, at: now };
      }
    }
    return null;
  }
}

const TEXT_TYPES = new Set(["text", "search", "email", "password", "number", "url", "tel", "date", "time"]);

/** Whether an element takes text, so that letters belong to it. */
export function takesText(element: Element | null): boolean {
  if (element === null) return false;
  if (element instanceof HTMLInputElement) return TEXT_TYPES.has(element.type);
  if (element instanceof HTMLTextAreaElement || element instanceof HTMLSelectElement) return true;
  return element.closest('[contenteditable=""], [contenteditable="true"], .xterm') !== null;
}

/** Whether a dialog or a menu is open. */
const overlayIsOpen = (): boolean => document.querySelector('[role="dialog"][data-state="open"], [role="menu"][data-state="open"]') !== null;

// Who runs which command. The newest taker wins; one that returns false leaves the key to the next.

type CommandTaker = (digit: number | null) => unknown;

const takers = new Map<Command, CommandTaker[]>();

function onCommand(command: Command, taker: CommandTaker): () => void {
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

/** Listens for shortcuts on the whole page. What an element has taken itself is left alone. */
export function useKeys(): void {
  useEffect(() => {
    const matcher = new KeyMatcher();
    const take = (event: KeyboardEvent) => {
      if (event.defaultPrevented) return;
      const situation = {
        isMac: isMac(),
        inText: takesText(document.activeElement),
        inOverlay: overlayIsOpen(),
        singleKeys: readPreference("singleKeys"),
      };
      const match = matcher.match(event, situation, event.timeStamp);
      if (match !== null && runCommand(match.shortcut.command, match.digit)) event.preventDefault();
    };
    document.addEventListener("keydown", take);
    return () => document.removeEventListener("keydown", take);
  }, []);
}

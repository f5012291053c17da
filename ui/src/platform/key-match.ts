/** Decides which command a key press means. Pure but for the state of half-typed sequences ("g g"). */
import { isSingleKey, SHORTCUTS, type Shortcut } from "./keymap";

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

export interface Match {
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
export const overlayIsOpen = (): boolean => document.querySelector('[role="dialog"][data-state="open"], [role="menu"][data-state="open"]') !== null;

/** What a key means in the message box. */
import type { KeyboardEvent } from "react";

export type BoxKey = "send" | "interrupt" | "newline" | "history-back" | "history-on" | null;

type KeyFacts = Pick<KeyboardEvent, "key" | "shiftKey" | "altKey" | "ctrlKey" | "metaKey"> & {
  nativeEvent: { isComposing?: boolean; keyCode?: number };
};

/** An input method uses Enter and arrows for its own choices; 229 is what older browsers say then. */
export function isComposing(event: { nativeEvent: { isComposing?: boolean; keyCode?: number } }): boolean {
  return event.nativeEvent.isComposing === true || event.nativeEvent.keyCode === 229;
}

export function boxKey(event: KeyFacts, sendKey: "enter" | "mod-enter", isBoxEmpty: boolean): BoxKey {
  if (isComposing(event)) return null;
  const hasMod = event.ctrlKey || event.metaKey;
  if (event.key === "Enter") {
    if (event.altKey) return "interrupt";
    if (hasMod) return "send";
    if (event.shiftKey) return "newline";
    return sendKey === "enter" ? "send" : "newline";
  }
  const isPlain = !hasMod && !event.altKey && !event.shiftKey;
  if (event.key === "ArrowUp" && isPlain && isBoxEmpty) return "history-back";
  if (event.key === "ArrowDown" && isPlain) return "history-on";
  return null;
}

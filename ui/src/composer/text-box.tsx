import { type ClipboardEvent, type KeyboardEvent, type RefObject, useCallback, useEffect, useLayoutEffect, useRef, useState } from "react";
import { api } from "@/api/client";

interface TextBoxProps {
  value: string;
  placeholder: string;
  label: string;
  /** The element, for focus. */
  boxRef: RefObject<HTMLTextAreaElement | null>;
  onChange: (text: string) => void;
  onKeyDown: (event: KeyboardEvent<HTMLTextAreaElement>) => void;
  onPaste: (event: ClipboardEvent<HTMLTextAreaElement>) => void;
  /** Of a menu that completes what is typed. */
  controls?: string | undefined;
  active?: string | undefined;
}

const MAX_PART_OF_WINDOW = 0.4;

/** A text box as high as its text, up to a part of the window. */
export function TextBox({ value, placeholder, label, boxRef, onChange, onKeyDown, onPaste, controls, active }: TextBoxProps) {
  useLayoutEffect(() => fit(boxRef.current), [boxRef, value]);
  useEffect(() => {
    const again = () => fit(boxRef.current);
    window.addEventListener("resize", again);
    return () => window.removeEventListener("resize", again);
  }, [boxRef]);
  return (
    <textarea
      id="box"
      ref={boxRef}
      className="composer-text"
      rows={1}
      value={value}
      placeholder={placeholder}
      aria-label={label}
      aria-controls={controls}
      aria-activedescendant={active}
      aria-autocomplete={controls === undefined ? undefined : "list"}
      onChange={(event) => onChange(event.target.value)}
      onKeyDown={onKeyDown}
      onPaste={onPaste}
    />
  );
}

function fit(box: HTMLTextAreaElement | null): void {
  if (box === null) return;
  box.style.height = "auto";
  const most = Math.max(80, window.innerHeight * MAX_PART_OF_WINDOW);
  box.style.height = `${Math.min(box.scrollHeight, most)}px`;
  box.style.overflowY = box.scrollHeight > most ? "auto" : "hidden";
}

// What a key means in the message box.

type BoxKey = "send" | "interrupt" | "newline" | "history-back" | "history-on" | null;

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

// Files that are dragged over the page: they can be dropped anywhere.

const hasFiles = (event: DragEvent): boolean => event.dataTransfer?.types.includes("Files") === true;

/** Whether files are over the page now. They go to `onFiles` wherever they are dropped. */
export function useFileDrop(onFiles: (files: readonly File[]) => void): boolean {
  const [isOver, setOver] = useState(false);
  const newest = useRef(onFiles);
  useEffect(() => {
    newest.current = onFiles;
  });
  useEffect(() => {
    const over = (event: DragEvent) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      if (event.dataTransfer !== null) event.dataTransfer.dropEffect = "copy";
      setOver(true);
    };
    const leave = (event: DragEvent) => {
      // Out of the window there is nothing that is entered.
      if (event.relatedTarget === null) setOver(false);
    };
    const drop = (event: DragEvent) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      setOver(false);
      const files = [...(event.dataTransfer?.files ?? [])];
      if (files.length > 0) newest.current(files);
    };
    const listeners = { dragenter: over, dragover: over, dragleave: leave, drop };
    const entries = Object.entries(listeners) as [string, EventListener][];
    for (const [name, listener] of entries) window.addEventListener(name, listener);
    return () => {
      for (const [name, listener] of entries) window.removeEventListener(name, listener);
    };
  }, []);
  return isOver;
}

// Earlier prompts of the chat, for the arrow keys in an empty box.

interface History {
  readonly chatId: string;
  readonly prompts: readonly string[];
  /** -1: not in the history. */
  at: number;
}

const MAX_PROMPTS = 50;

export function usePromptHistory(chatId: string | null, show: (text: string) => void) {
  const history = useRef<History | null>(null);
  const back = useCallback(async () => {
    if (history.current?.chatId !== (chatId ?? "")) {
      const prompts = await fetchPrompts(chatId).catch(() => []);
      history.current = { chatId: chatId ?? "", prompts, at: -1 };
    }
    const found = history.current;
    const text = found.prompts[found.at + 1];
    if (text === undefined) return;
    found.at += 1;
    show(text);
  }, [chatId, show]);
  /** False: the box does not show a prompt of the history. */
  const on = useCallback(
    (shown: string): boolean => {
      const found = history.current;
      if (found === null || found.at < 0 || found.prompts[found.at] !== shown) return false;
      found.at -= 1;
      show(found.prompts[found.at] ?? "");
      return true;
    },
    [show],
  );
  const isShown = useCallback((text: string): boolean => {
    const found = history.current;
    return found !== null && found.at >= 0 && found.prompts[found.at] === text;
  }, []);
  const forget = useCallback(() => {
    history.current = null;
  }, []);
  return { back, on, isShown, forget };
}

async function fetchPrompts(chatId: string | null): Promise<readonly string[]> {
  const query = { limit: MAX_PROMPTS };
  const page =
    chatId === null ? await api.GET("/api/v1/prompts", { query }) : await api.GET("/api/v1/chats/{chat_id}/prompts", { path: { chat_id: chatId }, query });
  return page.items.map((prompt) => prompt.text);
}

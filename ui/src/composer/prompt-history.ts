/** Earlier prompts of the chat, for the arrow keys in an empty box. */
import { useCallback, useRef } from "react";
import { api } from "@/api/client";

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
    chatId === null
      ? await api.GET("/api/v1/prompts", { query })
      : await api.GET("/api/v1/chats/{chat_id}/prompts", { path: { chat_id: chatId }, query });
  return page.items.map((prompt) => prompt.text);
}

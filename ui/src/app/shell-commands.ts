/** Commands that the shell takes itself: they move between chats and open panels. */
import { useLocation } from "wouter";
import { useChatList } from "@/connection";
import { focusComposer, type PanelTab } from "@/platform/actions";
import { useCommand } from "@/platform/commands";
import { readPreference, setPreference } from "@/platform/preferences";
import { chatPath, NEW_CHAT_PATH } from "@/platform/routes";
import { familyNeedsYou, type ListChat, needsYou } from "./sidebar/list-chat";

interface CommandPlaces {
  chatId: string | null;
  tab: PanelTab | null;
  setTab: (tab: PanelTab | null) => void;
  openPalette: () => void;
  openHelp: () => void;
}

/** The next chat that waits for a person, after the open one; a subagent stands for itself. */
export function nextThatNeedsYou(chats: readonly ListChat[], currentId: string | null): string | null {
  const waiting = chats.filter(familyNeedsYou).flatMap((chat) => [chat, ...(chat.children ?? [])].filter(needsYou).map((one) => one.id));
  if (waiting.length === 0) return null;
  const at = currentId === null ? -1 : waiting.indexOf(currentId);
  return waiting[(at + 1) % waiting.length] ?? null;
}

export function useShellCommands({ chatId, tab, setTab, openPalette, openHelp }: CommandPlaces): void {
  const [, navigate] = useLocation();
  const { chats } = useChatList();
  const togglePanel = (wanted: PanelTab) => {
    if (chatId === null) return false;
    setTab(tab === wanted ? null : wanted);
    return true;
  };
  useCommand("palette.open", openPalette);
  useCommand("help.open", openHelp);
  useCommand("chat.new", () => {
    navigate(NEW_CHAT_PATH);
    focusComposer();
  });
  useCommand("composer.focus", focusComposer);
  useCommand("chat.nth", (digit) => {
    const chat = digit === null ? undefined : chats[digit - 1];
    if (chat === undefined) return false;
    navigate(chatPath(chat.id));
    return true;
  });
  useCommand("chat.needsYou", () => {
    const next = nextThatNeedsYou(chats, chatId);
    if (next === null) return false;
    navigate(chatPath(next));
    return true;
  });
  useCommand("sidebar.toggle", () => setPreference("sidebarHidden", !readPreference("sidebarHidden")));
  useCommand("panel.toggle", () => togglePanel(tab ?? "changes"));
  useCommand("panel.changes", () => togglePanel("changes"));
  useCommand("panel.runs", () => togglePanel("runs"));
  useCommand("panel.terminal", () => togglePanel("terminal"));
}

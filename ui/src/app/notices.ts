/** Signs for somebody who looks elsewhere: a count in the title, and a chime if wanted. */
import { useEffect, useRef } from "react";
import { useChatDetails, useChatList } from "@/connection";
import { readPreference } from "@/platform/preferences";
import { playChime } from "./chime";
import { familyNeedsYou, isActive, isUnread, type ListChat } from "./sidebar/list-chat";

/** Chats with something to see: they need you, or have an unread answer. */
export const countNotices = (chats: readonly ListChat[]): number =>
  chats.filter((chat) => familyNeedsYou(chat) || isUnread(chat)).length;

export const titleText = (count: number, chatTitle: string | null): string =>
  `${count > 0 ? `(${count}) ` : ""}${chatTitle === null || chatTitle === "" ? "chatd" : `${chatTitle} · chatd`}`;

/** Chats that worked before and do not work now. */
export function finishedChats(before: ReadonlyMap<string, boolean>, chats: readonly ListChat[]): string[] {
  return chats.filter((chat) => before.get(chat.id) === true && !isActive(chat)).map((chat) => `${chat.id}:${chat.version}`);
}

export function useNotices(chatId: string | null): void {
  const { chats } = useChatList();
  const title = useChatDetails(chatId).data?.title ?? null;
  const count = countNotices(chats);
  const before = useRef<ReadonlyMap<string, boolean>>(new Map());
  useEffect(() => {
    document.title = titleText(count, title);
  }, [count, title]);
  useEffect(() => {
    const finished = finishedChats(before.current, chats);
    before.current = new Map(chats.map((chat) => [chat.id, isActive(chat)]));
    if (finished[0] !== undefined && document.hidden && readPreference("chime")) void playChime(finished[0]);
  }, [chats]);
}

/** What is said to screen readers about the open chat: at the borders of a turn, never by the token. */
import { useEffect, useRef } from "react";
import { isWorking } from "@/chat-state/reducer";
import type { ChatState, ChatStatus } from "@/chat-state/types";
import { useChatDetails, useChatList, useChatSelector } from "@/connection";
import { inOneTab } from "@/platform/plain-http";
import { readPreference } from "@/platform/preferences";
import { announce } from "@/platform/toasts";
import { familyNeedsYou, isActive, isUnread, type ListChat } from "./sidebar/list-chat";

interface Speech {
  text: string;
  assertive: boolean;
}

/** The sentence for a change of status, or null. */
export function speechFor(before: ChatStatus, after: ChatStatus, error: string | null): Speech | null {
  if (before === after) return null;
  if (after === "requires_action") return { text: "Needs you", assertive: true };
  if (after === "error") return { text: `Failed: ${error ?? "see the chat"}`, assertive: true };
  if (after === "interrupting") return { text: "Stopping", assertive: false };
  if (isWorking(after)) return isWorking(before) ? null : { text: "Working", assertive: false };
  if (after === "waiting" && before === "interrupting") return { text: "Stopped", assertive: false };
  if (after === "waiting" && isWorking(before)) return { text: "Reply complete", assertive: false };
  return null;
}

const selectStatus = (state: ChatState) => (state.loaded ? state.status : null);
const selectError = (state: ChatState) => state.error?.message ?? null;

/** Speaks for one chat while it is open. Opening a chat says nothing. */
export function useSpeech(chatId: string): void {
  const status = useChatSelector(chatId, selectStatus);
  const error = useChatSelector(chatId, selectError);
  const before = useRef<{ chatId: string; status: ChatStatus } | null>(null);
  useEffect(() => {
    if (status === null) return;
    const known = before.current;
    before.current = { chatId, status };
    if (known?.chatId !== chatId) return;
    const speech = speechFor(known.status, status, error);
    if (speech !== null) announce(speech.text, speech.assertive);
  }, [chatId, status, error]);
}

/** Two soft notes, made here: no file is loaded. Of several tabs one plays. */
const HOLD_MS = 3000;

function play(): void {
  const audio = new AudioContext();
  const start = audio.currentTime;
  [587.33, 880].forEach((frequency, index) => {
    const note = audio.createOscillator();
    const volume = audio.createGain();
    note.frequency.value = frequency;
    const at = start + index * 0.14;
    volume.gain.setValueAtTime(0, at);
    volume.gain.linearRampToValueAtTime(0.08, at + 0.02);
    volume.gain.exponentialRampToValueAtTime(0.0001, at + 0.5);
    note.connect(volume).connect(audio.destination);
    note.start(at);
    note.stop(at + 0.5);
  });
  setTimeout(() => void audio.close(), 1500);
}

/** Plays once for what `about` names, also when several tabs ask at the same time. */
async function playChime(about: string): Promise<void> {
  await inOneTab(`chatd.chime:${about}`, async () => {
    play();
    await new Promise((resolve) => setTimeout(resolve, HOLD_MS));
  });
}

// Signs for somebody who looks elsewhere: a count in the title, and a chime if wanted.

/** Chats with something to see: they need you, or have an unread answer. */
const countNotices = (chats: readonly ListChat[]): number => chats.filter((chat) => familyNeedsYou(chat) || isUnread(chat)).length;

const titleText = (count: number, chatTitle: string | null): string =>
  `${count > 0 ? `(${count}) ` : ""}${chatTitle === null || chatTitle === "" ? "chatd" : `${chatTitle} · chatd`}`;

/** Chats that worked before and do not work now. */
function finishedChats(before: ReadonlyMap<string, boolean>, chats: readonly ListChat[]): string[] {
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

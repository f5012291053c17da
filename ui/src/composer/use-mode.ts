/** Plan mode: of a chat that exists on the server, of a new one in its draft. */
import { useQueryClient } from "@tanstack/react-query";
import { api } from "@/api/client";
import { ApiError } from "@/api/errors";
import { CHAT_KEY, type ChatReply, useChatDetails } from "@/connection";
import { announce } from "@/platform/announcer";
import { toast } from "@/platform/toasts";
import type { MessageDraft } from "./draft/draft";

export interface PlanChoice {
  readonly isPlan: boolean;
  /** Subagents have the mode that they were started with. */
  readonly canChange: boolean;
  setPlan: (isPlan: boolean) => void;
}

type ChangeDraft = (change: (draft: MessageDraft) => MessageDraft) => void;

export function usePlanChoice(chatId: string | null, draft: MessageDraft, change: ChangeDraft): PlanChoice {
  const client = useQueryClient();
  const details = useChatDetails(chatId).data;
  const say = (isPlan: boolean) => announce(isPlan ? "Plan mode on" : "Plan mode off");
  if (chatId === null) {
    const setPlan = (isPlan: boolean) => {
      change((was) => ({ ...was, isPlan }));
      say(isPlan);
    };
    return { isPlan: draft.isPlan, canChange: true, setPlan };
  }
  const key = [CHAT_KEY, chatId];
  const show = (mode: string | null) => client.setQueryData<ChatReply>(key, (known) => (known === undefined ? undefined : { ...known, mode }));
  const save = async (isPlan: boolean) => {
    const before = details?.mode ?? null;
    show(isPlan ? "plan" : null);
    say(isPlan);
    try {
      await api.PATCH("/api/v1/chats/{chat_id}", { path: { chat_id: chatId }, body: { mode: isPlan ? "plan" : "off" } });
    } catch (error) {
      show(before);
      toast({ text: error instanceof ApiError ? error.message : "The mode did not change. Try again.", tone: "danger" });
    }
  };
  return { isPlan: details?.mode === "plan", canChange: details?.parent_chat_id == null, setPlan: (isPlan) => void save(isPlan) };
}

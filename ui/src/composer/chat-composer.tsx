import { useCallback, useEffect, useMemo, useRef, useState } from "react";
import { useLocation } from "wouter";
import { api } from "@/api/client";
import type { BusyBehavior, ChatState } from "@/chat-state";
import { useChatDetails, useOutbox, useSettledChat } from "@/connection";
import { focusComposer, useAction } from "@/platform/actions";
import { announce } from "@/platform/announcer";
import { useCommand } from "@/platform/commands";
import { toast } from "@/platform/toasts";
import { behaviorText, runsTools, takesBehaviors, waitingQuestions } from "./behavior";
import { contentOf, draftOf, EMPTY_DRAFT, type MessageDraft } from "./draft/draft";
import { changeDraft, clearDraft } from "./draft/draft-store";
import { takeFocusWish } from "./focus-wish";
import { MessageBox } from "./message-box";
import { EditNotice, Unsent } from "./notices";
import { QueueActions, textOf } from "./queue/queue-actions";
import { type Editing, QueueList } from "./queue/queue-list";
import { runSlash } from "./run-slash";
import { tell } from "./tell";

const SECOND_PRESS_MS = 3000;

/** The composer of a chat that exists. */
export function ChatComposer({ chatId }: { chatId: string }) {
  const chat = useSettledChat(chatId);
  const { state } = chat;
  const details = useChatDetails(chatId).data;
  const outbox = useOutbox();
  const [, navigate] = useLocation();
  const [behavior, setBehavior] = useState<BusyBehavior>("queue");
  const [queueEdit, setQueueEdit] = useState<Editing | null>(null);
  const [edited, setEdited] = useState<number | null>(null);
  const [isSaving, setSaving] = useState(false);
  const actions = useMemo(() => new QueueActions(chatId), [chatId]);
  const stop = useStop(chatId, chat.readNow);
  const isBusy = takesBehaviors(state);
  const questions = waitingQuestions(state);
  const isAnswer = questions.length > 0 && behavior === "queue";
  const isArchived = details?.archived === true;
  const draftKey = edited === null ? chatId : `${chatId}.edit`;

  useEffect(() => {
    if (takeFocusWish(chatId)) focusComposer();
  }, [chatId]);
  useAction("editMessage", (id) => {
    const message = state.messages.find((one) => one.id === id);
    if (message?.role !== "user") return;
    changeDraft(`${chatId}.edit`, () => draftOf(message.content));
    setEdited(id);
    focusComposer();
  });
  const cancelEdit = useCallback(() => {
    changeDraft(`${chatId}.edit`, () => EMPTY_DRAFT);
    setEdited(null);
  }, [chatId]);
  useCommand("escape", () => {
    if (edited !== null) cancelEdit();
    else return stop.byKey();
    return true;
  });

  const saveEdit = async (id: number, draft: MessageDraft) => {
    setSaving(true);
    try {
      const body = { content: contentOf(draft), ...modelOf(draft) };
      await api.PATCH("/api/v1/chats/{chat_id}/messages/{message_id}", { path: { chat_id: chatId, message_id: id }, body });
      cancelEdit();
    } finally {
      setSaving(false);
    }
  };
  const send = (draft: MessageDraft, as: BusyBehavior) => {
    if (edited !== null) {
      tell(saveEdit(edited, draft));
      return;
    }
    if (as === "queue" && questions.length > 0) {
      tell(answerQuestion(draft));
      return;
    }
    const sent = chat.send({
      content: contentOf(draft),
      busyBehavior: isBusy ? as : "queue",
      modelConfigId: draft.modelConfigId,
      reasoningEffort: draft.effort,
      ...(draft.isPlan ? { mode: "plan" as const } : {}),
    });
    if (sent === null) {
      toast({ text: "Too many messages are unsent. Discard some first.", tone: "danger" });
      return;
    }
    clearDraft(draftKey);
    setBehavior("queue");
    announce(isBusy ? sentWords(as) : "Sent");
  };
  /** What is typed while a question waits answers it; behind it in the queue it would wait for ever. */
  const answerQuestion = async (draft: MessageDraft) => {
    const [only] = questions;
    const isText = draft.references.length === 0 && draft.attachments.length === 0;
    if (only === undefined || questions.length > 1 || only.count > 1 || !isText) {
      toast(isText ? "More than one question waits. Answer each in its form, or choose Interrupt to drop them." : "A question waits, and takes no files. Answer it first, or choose Interrupt to drop it.");
      return;
    }
    setSaving(true);
    try {
      const answer = { tool_call_id: only.callId, decision: "answer" as const, replies: [{ labels: [], text: draft.text.trim() }] };
      const headers = { "Idempotency-Key": crypto.randomUUID() };
      await api.POST("/api/v1/chats/{chat_id}/answers", { path: { chat_id: chatId }, body: { answers: [answer] }, headers });
      clearDraft(draftKey);
      announce("Answered");
    } finally {
      setSaving(false);
    }
  };
  const editUnsent = (id: string) => {
    const draft = outbox.discard(id);
    if (draft === null) return;
    changeDraft(chatId, (was) => ({ ...was, ...draftOf(draft.content) }));
    focusComposer();
  };
  useAction("editUnsent", editUnsent);
  const last = state.queue.findLast((one) => one.steer !== true) ?? state.queue.at(-1);
  return (
    <MessageBox
      chatId={chatId}
      draftKey={draftKey}
      state={state}
      verb={edited !== null ? "Save and run again" : isAnswer ? "Answer" : isBusy ? behaviorText(behavior).verb : "Send"}
      placeholder={isAnswer ? "Answer in your own words" : placeholderOf(isBusy, isArchived)}
      behavior={behavior}
      hasChoice={isBusy && edited === null}
      isSending={isSaving}
      canStop={state.status === "running" || state.status === "pending" || state.status === "interrupting" || state.status === "requires_action"}
      onBehavior={setBehavior}
      onSend={send}
      onStop={stop.now}
      onSlash={(command) => tell(runSlash(command.name, { chatId, actions, navigate, stop: stop.now }))}
      onEditLast={() => {
        if (last === undefined || edited !== null) return false;
        setQueueEdit({ id: last.id, text: textOf(last) });
        return true;
      }}
    >
      <Unsent items={chat.pendingSends} isBusy={isBusy} onRetry={(id) => outbox.retry(id)} onEdit={editUnsent} onDiscard={(id) => outbox.discard(id)} />
      {edited !== null && <EditNotice onCancel={cancelEdit} />}
      <QueueList
        queue={state.queue}
        actions={actions}
        isHeld={details?.queue_held === true && !isBusy}
        isBusy={isBusy}
        editing={queueEdit}
        onEditing={setQueueEdit}
        onDone={focusComposer}
      />
    </MessageBox>
  );
}

function modelOf(draft: MessageDraft) {
  return {
    ...(draft.modelConfigId === null ? {} : { model_config_id: draft.modelConfigId }),
    ...(draft.effort === null ? {} : { reasoning_effort: draft.effort }),
  };
}

function sentWords(behavior: BusyBehavior): string {
  const words: Record<BusyBehavior, string> = {
    queue: "Queued",
    steer: "It joins before the next step",
    interrupt: "Interrupting",
    rollback: "Replacing the turn",
  };
  return words[behavior];
}

function placeholderOf(isBusy: boolean, isArchived: boolean): string {
  if (isArchived) return "This chat is archived";
  return isBusy ? "Add a message while it works" : "Write a message";
}

/** Stopping: at once by the button; by Esc with a second press while a tool runs. */
function useStop(chatId: string, readNow: () => ChatState) {
  const pressedAt = useRef(0);
  const now = useCallback(() => {
    const waiting = readNow().queue.length;
    tell(api.POST("/api/v1/chats/{chat_id}/interrupt", { path: { chat_id: chatId } }));
    if (waiting > 0) toast(`Stopping. The queue goes on at once with the ${waiting === 1 ? "message" : `first of ${waiting} messages`} in it; Hold stops that too.`);
  }, [chatId, readNow]);
  const byKey = (): boolean => {
    const state = readNow();
    if (state.status !== "running" && state.status !== "pending" && state.status !== "requires_action") return false;
    const isSecond = Date.now() - pressedAt.current < SECOND_PRESS_MS;
    if (runsTools(state) && !isSecond) {
      pressedAt.current = Date.now();
      toast("A tool is running. Press Esc again to stop it.");
      announce("A tool is running. Press Escape again to stop it.");
      return true;
    }
    pressedAt.current = 0;
    now();
    return true;
  };
  return { now, byKey };
}

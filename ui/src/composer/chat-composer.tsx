import { CloudOff, Pencil, RotateCw, TriangleAlert } from "lucide-react";
import { useCallback, useEffect, useMemo, useRef, useState } from "react";
import { useLocation } from "wouter";
import { api } from "@/api/client";
import type { BusyBehavior, OutboxItem } from "@/chat-state/outbox";
import { isBusy } from "@/chat-state/reducer";
import type { ChatState } from "@/chat-state/types";
import { Button, Icon } from "@/components";
import { useChatDetails, useOutbox, useSettledChat } from "@/connection";
import { focusComposer, useAction } from "@/platform/actions";
import { useCommand } from "@/platform/keys";
import { newUuid } from "@/platform/plain-http";
import { announce, toast, toastOnError } from "@/platform/toasts";
import { refusalText } from "./context-and-cost";
import { contentOf, draftOf, EMPTY_DRAFT, type MessageDraft } from "./draft";
import { changeDraft, clearDraft } from "./draft-store";
import { MessageBox, takeFocusWish } from "./message-box";
import { QueueActions, textOf } from "./queue-actions";
import { type Editing, QueueList } from "./queue-list";
import { behaviorText, runsTools, waitingQuestions } from "./send-button";
import { runSlash } from "./slash";

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
  const busy = isBusy(state.status);
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
      toastOnError(saveEdit(edited, draft));
      return;
    }
    if (as === "queue" && questions.length > 0) {
      toastOnError(answerQuestion(draft));
      return;
    }
    const sent = chat.send({
      content: contentOf(draft),
      busyBehavior: busy ? as : "queue",
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
    announce(busy ? sentWords(as) : "Sent");
  };
  /** What is typed while a question waits answers it; behind it in the queue it would wait for ever. */
  const answerQuestion = async (draft: MessageDraft) => {
    const [only] = questions;
    const isText = draft.references.length === 0 && draft.attachments.length === 0;
    if (only === undefined || questions.length > 1 || only.count > 1 || !isText) {
      toast(
        isText
          ? "More than one question waits. Answer each in its form, or choose Interrupt to drop them."
          : "A question waits, and takes no files. Answer it first, or choose Interrupt to drop it.",
      );
      return;
    }
    setSaving(true);
    try {
      const answer = { tool_call_id: only.callId, decision: "answer" as const, replies: [{ labels: [], text: draft.text.trim() }] };
      const headers = { "Idempotency-Key": newUuid() };
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
      verb={edited !== null ? "Save and run again" : isAnswer ? "Answer" : busy ? behaviorText(behavior).verb : "Send"}
      placeholder={isAnswer ? "Answer in your own words" : placeholderOf(busy, isArchived)}
      behavior={behavior}
      hasChoice={busy && edited === null}
      isSending={isSaving}
      canStop={busy}
      onBehavior={setBehavior}
      onSend={send}
      onStop={stop.now}
      onSlash={(command) => toastOnError(runSlash(command.name, { chatId, actions, navigate, stop: stop.now }))}
      onEditLast={() => {
        if (last === undefined || edited !== null) return false;
        setQueueEdit({ id: last.id, text: textOf(last) });
        return true;
      }}
    >
      <Unsent items={chat.pendingSends} isBusy={busy} onRetry={(id) => outbox.retry(id)} onEdit={editUnsent} onDiscard={(id) => outbox.discard(id)} />
      {edited !== null && <EditNotice onCancel={cancelEdit} />}
      <QueueList
        queue={state.queue}
        actions={actions}
        isHeld={details?.queue_held === true && !busy}
        isBusy={busy}
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
    toastOnError(api.POST("/api/v1/chats/{chat_id}/interrupt", { path: { chat_id: chatId } }));
    if (waiting > 0)
      toast(`Stopping. The queue goes on at once with the ${waiting === 1 ? "message" : `first of ${waiting} messages`} in it; Hold stops that too.`);
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

/** While a sent message is edited. */
function EditNotice({ onCancel }: { onCancel: () => void }) {
  return (
    <div className="composer-note tone-warn" role="status">
      <Icon of={Pencil} size="sm" />
      <span className="ui-grow">Editing a sent message. What came after it, and the queue, will be deleted.</span>
      <Button size="xs" variant="quiet" onClick={onCancel}>
        Cancel
      </Button>
    </div>
  );
}

interface UnsentProps {
  items: readonly OutboxItem[];
  isBusy: boolean;
  onRetry: (id: string) => void;
  onEdit: (id: string) => void;
  onDiscard: (id: string) => void;
}

/** Messages that the server has refused, and of a busy chat those that wait for the server: an idle chat has them in its timeline. */
function Unsent({ items, isBusy, onRetry, onEdit, onDiscard }: UnsentProps) {
  const shown = items.filter((item) => item.state === "refused" || (isBusy && item.error !== null && item.state !== "sent"));
  return shown.map((item) => {
    const isRefused = item.state === "refused";
    const text = draftOf(item.draft.content).text;
    return (
      <div key={item.id} className={isRefused ? "composer-note tone-danger" : "composer-note"} role={isRefused ? "alert" : "status"}>
        <Icon of={isRefused ? TriangleAlert : CloudOff} size="sm" />
        <span className="ui-grow">
          <b className="ui-ellipsis">{text === "" ? "Files" : text}</b>
          <span>{isRefused && item.error !== null ? refusalText(item.error) : "Kept here. It is sent when the server answers."}</span>
        </span>
        {isRefused && (
          <Button size="xs" icon={RotateCw} onClick={() => onRetry(item.id)}>
            Try again
          </Button>
        )}
        {item.state !== "sending" && (
          <>
            <Button size="xs" variant="quiet" onClick={() => onEdit(item.id)}>
              Edit
            </Button>
            <Button size="xs" variant="quiet" onClick={() => onDiscard(item.id)}>
              Discard
            </Button>
          </>
        )}
      </div>
    );
  });
}

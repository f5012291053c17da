/** What rows of a chat can do, by the server's API and the other areas of the page. */
import { useEffect, useMemo, useRef } from "react";
import { useLocation } from "wouter";
import { api } from "@/api/client";
import { useMe } from "@/api/queries";
import { type OpenChat, useOutbox } from "@/connection";
import { editMessage, editUnsent, openModelPicker, openPanel } from "@/platform/actions";
import { newUuid } from "@/platform/plain-http";
import { chatPath } from "@/platform/routes";
import { toast } from "@/platform/toasts";
import { copyText } from "@/platform/plain-http";
import { type BuildLog, decideCall, fileUrl, type RegenerateBody, type TimelineActions, told } from "../actions";
import { isUnanswered, lastSaid } from "../rows/rows";

export function useChatActions(chatId: string, chat: OpenChat): TimelineActions {
  const [, navigate] = useLocation();
  const outbox = useOutbox();
  const isAdmin = useMe().data?.user.role === "admin";
  const newest = useRef(chat);
  useEffect(() => {
    newest.current = chat;
  });
  return useMemo<TimelineActions>(() => {
    const path = { chat_id: chatId };
    const send = (text: string, mode?: "off" | "plan") => {
      newest.current.send({ content: [{ type: "text", text }], ...(mode === undefined ? {} : { mode }) });
    };
    const regenerate = async (messageId: number, body: RegenerateBody) => {
      const headers = { "Idempotency-Key": newUuid() };
      const message = { ...path, message_id: messageId };
      await told(api.POST("/api/v1/chats/{chat_id}/messages/{message_id}/regenerate", { path: message, body, headers }));
    };
    return {
      chatId,
      isAdmin,
      send,
      answer: async (callId, output) => {
        const waiting = newest.current.state.requestedCalls.filter((call) => (call.kind ?? "client") === "client");
        const results = waiting.map((call) => ({
          tool_call_id: call.tool_call_id,
          output: call.tool_call_id === callId ? output : { error: "Not answered: the user answered another call." },
        }));
        await told(api.POST("/api/v1/chats/{chat_id}/tool-results", { path, body: { results } }));
      },
      decide: (answer) => decideCall(chatId, answer),
      resume: async () => {
        await told(api.POST("/api/v1/chats/{chat_id}/resume", { path }));
      },
      tryAgain: () => {
        const { state } = newest.current;
        const last = lastSaid(state);
        if (last === undefined || !isUnanswered(state)) {
          send("Continue.");
          return;
        }
        void regenerate(last.id, {});
      },
      regenerate,
      switchModel: openModelPicker,
      openSettings: navigate,
      edit: editMessage,
      fork: async (messageId) => {
        const copy = await told(api.POST("/api/v1/chats/{chat_id}/fork", { path, body: { message_id: messageId } }));
        navigate(chatPath(copy.id));
      },
      copyLink: (messageId) => {
        const url = new URL(chatPath(chatId, messageId), window.location.href).href;
        void copyText(url).then((done) => toast(done ? "Link copied." : `The browser did not allow to copy: ${url}`));
      },
      openRuns: (messageId) => openPanel("runs", messageId === null ? {} : { messageId }),
      openChanges: (file) => openPanel("changes", { path: file }),
      buildLog: (buildId, signal) => readBuildLog(chatId, buildId, signal),
      fileText: async (fileId, signal) => {
        const reply = await fetch(fileUrl(fileId), { signal, credentials: "same-origin" });
        if (!reply.ok) throw new Error(`The file could not be loaded (${reply.status}).`);
        return reply.text();
      },
      discardSend: (id) => void outbox.discard(id),
      editSend: editUnsent,
    };
  }, [chatId, isAdmin, navigate, outbox]);
}

const LOG_LINES = 100;

async function readBuildLog(chatId: string, buildId: string | null, signal: AbortSignal): Promise<BuildLog> {
  const id = buildId ?? (await currentBuild(chatId, signal));
  if (id === null) return { lines: [], hasEnded: false };
  const page = await api.GET("/api/v1/builds/{build_id}/logs", { path: { build_id: id }, query: { limit: LOG_LINES }, signal });
  const lines = page.items.map((line) => ({ id: line.id, at: line.created_at, level: line.level, text: line.output }));
  return { lines, hasEnded: page.ended };
}

/** While a workspace is being made, the chat knows the workspace, and the workspace its build. */
async function currentBuild(chatId: string, signal: AbortSignal): Promise<string | null> {
  const chat = await api.GET("/api/v1/chats/{chat_id}", { path: { chat_id: chatId }, signal });
  if (!chat.workspace_id) return null;
  const workspace = await api.GET("/api/v1/workspaces/{workspace_id}", { path: { workspace_id: chat.workspace_id }, signal });
  return workspace.latest_build?.id ?? null;
}

import { useEffect, useState } from "react";
import { useLocation } from "wouter";
import { api, ApiError } from "@/api/client";
import type { components } from "@/api/schema";
import { ErrorNote } from "@/components";
import { useChatDetails, useCreatedChat } from "@/connection";
import { focusComposer } from "@/platform/actions";
import { newUuid } from "@/platform/plain-http";
import { chatPath, MEMORY_PATH } from "@/platform/routes";
import { announce } from "@/platform/toasts";
import { ChatComposer } from "./chat-composer";
import { refusalText } from "./context-and-cost";
import { contentOf, type MessageDraft } from "./draft";
import { clearDraft } from "./draft-store";
import { MessageBox, wishFocus } from "./message-box";
import type { SlashCommand } from "./slash";

/** Where messages are written. Without a chat the first message creates one, in the project if one is named. */
export function Composer({ chatId, projectId = null }: { chatId: string | null; projectId?: string | null }) {
  const details = useChatDetails(chatId).data;
  if (chatId === null) return <NewChatComposer projectId={projectId} />;
  if (details?.is_owner === false) return <ReadOnly owner={details.owner_username ?? "its owner"} />;
  return <ChatComposer key={chatId} chatId={chatId} />;
}

/** In place of the box in a chat that another user shares. */
function ReadOnly({ owner }: { owner: string }) {
  return (
    <div className="composer-dock">
      <div className="composer-column">
        <p className="composer-read-only">You can read this chat. Only {owner} can write in it.</p>
      </div>
    </div>
  );
}

type CreateBody = components["schemas"]["CreateChatBody"];

const DRAFT_KEY = "new";

/** The composer of a chat that begins with its first message. */
function NewChatComposer({ projectId }: { projectId: string | null }) {
  const [, navigate] = useLocation();
  const [isSending, setSending] = useState(false);
  const [error, setError] = useState<ApiError | null>(null);
  const onCreated = useCreatedChat();
  useEffect(() => {
    // A keyboard on the screen would cover the page.
    if (!window.matchMedia("(pointer: coarse)").matches) focusComposer();
  }, []);
  const create = async (draft: MessageDraft) => {
    setSending(true);
    setError(null);
    try {
      const body = { ...bodyOf(draft), ...(projectId === null ? {} : { project_id: projectId }) };
      const headers = { "Idempotency-Key": creationKey(body) };
      const chat = await api.POST("/api/v1/chats", { body, headers });
      forgetCreation();
      clearDraft(DRAFT_KEY);
      onCreated(chat);
      wishFocus(chat.id);
      navigate(chatPath(chat.id));
      announce("Working");
    } catch (caught) {
      if (!(caught instanceof ApiError)) throw caught;
      if (!caught.isTemporary) forgetCreation();
      setError(caught);
    } finally {
      setSending(false);
    }
  };
  return (
    <MessageBox
      chatId={null}
      draftKey={DRAFT_KEY}
      state={null}
      verb="Send"
      placeholder="Describe a task"
      behavior="queue"
      hasChoice={false}
      isSending={isSending}
      canStop={false}
      onBehavior={() => undefined}
      onSend={(draft) => void create(draft)}
      onStop={() => undefined}
      onSlash={(command: SlashCommand) => {
        if (command.name === "new") clearDraft(DRAFT_KEY);
        if (command.name === "remember") navigate(MEMORY_PATH);
      }}
      onEditLast={() => false}
    >
      {error !== null && <ErrorNote error={new Error(refusalText(error.body))} />}
    </MessageBox>
  );
}

function bodyOf(draft: MessageDraft): CreateBody {
  return {
    content: contentOf(draft),
    ...(draft.modelConfigId === null ? {} : { model_config_id: draft.modelConfigId }),
    ...(draft.effort === null ? {} : { reasoning_effort: draft.effort }),
    ...(draft.isPlan ? { mode: "plan" as const } : {}),
    ...(draft.mcpServerIds === null ? {} : { mcp_server_ids: [...draft.mcpServerIds] }),
    ...(draft.workspace === null ? {} : { workspace_id: draft.workspace.id }),
  };
}

/**
 * The Idempotency-Key of a chat that is being created. It is kept with the request until the server
 * has answered, so that a second try, also after a reload, does not make a second chat.
 */
const NAME = "chatd.creation";

interface Kept {
  readonly key: string;
  readonly body: string;
  readonly at: number;
}

/** The server remembers a key for 24 hours. */
const MAX_AGE_MS = 23 * 60 * 60 * 1000;

function creationKey(body: unknown): string {
  const text = JSON.stringify(body);
  const kept = read();
  if (kept?.body === text && Date.now() - kept.at < MAX_AGE_MS) return kept.key;
  const key = newUuid();
  try {
    localStorage.setItem(NAME, JSON.stringify({ key, body: text, at: Date.now() } satisfies Kept));
  } catch {
    // Without storage the key lasts for this try.
  }
  return key;
}

function forgetCreation(): void {
  try {
    localStorage.removeItem(NAME);
  } catch {
    // Nothing was kept.
  }
}

function read(): Kept | null {
  try {
    return JSON.parse(localStorage.getItem(NAME) ?? "null") as Kept | null;
  } catch {
    return null;
  }
}

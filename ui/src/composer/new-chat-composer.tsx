import { useEffect, useState } from "react";
import { useLocation } from "wouter";
import { api } from "@/api/client";
import { ApiError } from "@/api/errors";
import type { components } from "@/api/schema";
import { ErrorNote } from "@/components";
import { useCreatedChat } from "@/connection";
import { focusComposer } from "@/platform/actions";
import { announce } from "@/platform/announcer";
import { chatPath } from "@/platform/routes";
import { creationKey, forgetCreation } from "./creation-key";
import { contentOf, type MessageDraft } from "./draft/draft";
import { clearDraft } from "./draft/draft-store";
import { wishFocus } from "./focus-wish";
import { refusalText } from "./limit-text";
import { MessageBox } from "./message-box";
import type { SlashCommand } from "./slash-commands";

type CreateBody = components["schemas"]["CreateChatBody"];

const DRAFT_KEY = "new";

/** The composer of a chat that begins with its first message. */
export function NewChatComposer() {
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
      const body = bodyOf(draft);
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
  };
}

import { useQueryClient } from "@tanstack/react-query";
import { Container, ListTodo, Paperclip, Plus } from "lucide-react";
import { lazy, Suspense } from "react";
import { api, ApiError } from "@/api/client";
import { queryKeys } from "@/api/queries";
import { Icon, IconButton, Menu, MenuChoice, MenuItem } from "@/components";
import { type ChatReply, useChatDetails } from "@/connection";
import { announce, toast } from "@/platform/toasts";
import type { ChosenWorkspace, MessageDraft } from "./draft";

const McpChoices = lazy(async () => ({ default: (await import("./mcp-choices")).McpChoices }));

interface PlusMenuProps {
  chatId: string | null;
  draft: MessageDraft;
  onDraft: (change: (draft: MessageDraft) => MessageDraft) => void;
  plan: PlanChoice;
  onAttach: () => void;
  onWorkspace: () => void;
}

/** What can be added to the message, and how the chat works. */
export function PlusMenu({ chatId, draft, onDraft, plan, onAttach, onWorkspace }: PlusMenuProps) {
  return (
    <Menu trigger={<IconButton icon={Plus} label="Add files and choose tools" />} side="top" align="start">
      <MenuItem icon={Paperclip} onSelect={onAttach}>
        Attach files
      </MenuItem>
      {chatId === null && (
        <MenuItem icon={Container} hint="A repository and branch, or a workspace that you have" onSelect={onWorkspace}>
          Choose where it works
        </MenuItem>
      )}
      {plan.canChange && (
        <MenuChoice icon={ListTodo} checked={plan.isPlan} onChecked={plan.setPlan} hint="It looks around and writes a plan, and changes nothing else">
          Plan mode
        </MenuChoice>
      )}
      {plan.canChange && (
        <Suspense>
          <McpChoices chatId={chatId} draft={draft} onDraft={onDraft} />
        </Suspense>
      )}
    </Menu>
  );
}

/** Shown while the chat plans; a press ends it. */
export function PlanButton({ plan }: { plan: PlanChoice }) {
  if (!plan.isPlan) return null;
  return (
    <button type="button" className="composer-pick is-on" aria-pressed="true" aria-label="Plan mode; press to turn it off" onClick={() => plan.setPlan(false)}>
      <Icon of={ListTodo} size="sm" />
      Plan
    </button>
  );
}

/** The workspace that was chosen for a new chat; a press chooses another. */
export function WorkspaceButton({ workspace, onPress }: { workspace: ChosenWorkspace | null; onPress: () => void }) {
  if (workspace === null) return null;
  return (
    <button type="button" className="composer-pick is-on composer-where" aria-label={`Workspace ${workspace.name}; press to choose another`} onClick={onPress}>
      <Icon of={Container} size="sm" />
      <span className="ui-ellipsis">{workspace.name}</span>
    </button>
  );
}

// Plan mode: of a chat that exists on the server, of a new one in its draft.

interface PlanChoice {
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
  const key = queryKeys.chat(chatId);
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

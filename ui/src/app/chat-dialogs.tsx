/** Dialogs about one chat. Any menu opens them; the shell shows them, so that they outlive the menu. */
import { lazy, Suspense, useSyncExternalStore } from "react";
import { useLocation } from "wouter";
import { useMe } from "@/api/queries";
import { ConfirmDialog } from "@/components";
import { useDeleteChat } from "@/connection";
import { chatOfPath, HOME_PATH } from "@/platform/routes";
import { ChatPolicyDialog } from "./areas";
import type { ListChat } from "./sidebar/list-chat";

export type ChatDialogKind = "rename" | "labels" | "delete" | "share" | "policy";

interface Asked {
  kind: ChatDialogKind;
  chat: ListChat;
}

let asked: Asked | null = null;
const listeners = new Set<() => void>();

function ask(next: Asked | null): void {
  asked = next;
  for (const listener of listeners) listener();
}

export const openChatDialog = (kind: ChatDialogKind, chat: ListChat): void => ask({ kind, chat });

const RenameDialog = lazy(async () => ({ default: (await import("./dialogs/rename-dialog")).RenameDialog }));
const LabelsDialog = lazy(async () => ({ default: (await import("./dialogs/labels-dialog")).LabelsDialog }));
const ShareDialog = lazy(async () => ({ default: (await import("./dialogs/share-dialog")).ShareDialog }));

function DeleteDialog({ chat, onClose }: { chat: ListChat; onClose: () => void }) {
  const [path, navigate] = useLocation();
  const deleteChat = useDeleteChat();
  const subagents = chat.children?.length ?? 0;
  const confirm = async () => {
    await deleteChat(chat);
    const open = chatOfPath(path);
    if (open === chat.id || chat.children?.some((child) => child.id === open) === true) navigate(HOME_PATH);
  };
  return (
    <ConfirmDialog
      open
      onOpenChange={onClose}
      title="Delete this chat?"
      description={
        <>
          “{chat.title}”{subagents > 0 && `, with its ${subagents === 1 ? "subagent" : `${subagents} subagents`},`} is deleted for
          good. Archive it instead to keep it out of the list.
        </>
      }
      action="Delete"
      onConfirm={confirm}
    />
  );
}

function PolicyDialog({ chat, onClose }: { chat: ListChat; onClose: () => void }) {
  const me = useMe().data?.user;
  return <ChatPolicyDialog chatId={chat.id} canEdit={me?.id === chat.owner_id} onClose={onClose} />;
}

const DIALOGS = { rename: RenameDialog, labels: LabelsDialog, share: ShareDialog, delete: DeleteDialog, policy: PolicyDialog } as const;

export function ChatDialogs() {
  const open = useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => asked,
  );
  if (open === null) return null;
  const Shown = DIALOGS[open.kind];
  return (
    <Suspense>
      <Shown key={open.chat.id} chat={open.chat} onClose={() => ask(null)} />
    </Suspense>
  );
}

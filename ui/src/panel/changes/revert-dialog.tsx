/** Asks before a file is put back, and does it. */
import { useQueryClient } from "@tanstack/react-query";
import { api } from "@/api/client";
import { ConfirmDialog } from "@/components";
import { useChatSelector } from "@/connection";
import { toast } from "@/platform/toasts";
import type { FileDiff } from "./git-diff";
import type { Scope } from "./use-changes";

export interface Reverting {
  readonly root: string;
  readonly file: FileDiff;
}

interface RevertDialogProps {
  readonly chatId: string;
  readonly scope: Scope;
  readonly reverting: Reverting;
  readonly onClose: () => void;
}

const BEFORE: Readonly<Record<Scope, string>> = {
  turn: "before this turn",
  chat: "before this chat changed it",
  git: "in the last commit",
};

export function RevertDialog({ chatId, scope, reverting, onClose }: RevertDialogProps) {
  const client = useQueryClient();
  const isBusy = useChatSelector(chatId, (state) => state.status !== "waiting" && state.status !== "error");
  const { root, file } = reverting;
  const revert = async () => {
    const body = { scope, repo_root: root, path: file.path, ...(file.oldPath === null || file.kind !== "renamed" ? {} : { old_path: file.oldPath }) };
    await api.POST("/api/v1/chats/{chat_id}/workspace/revert", { path: { chat_id: chatId }, body });
    toast(`${file.path} is as it was ${BEFORE[scope]}.`);
    await client.invalidateQueries({ queryKey: ["panel", "changes", chatId] });
  };
  return (
    <ConfirmDialog
      open
      onOpenChange={(isOpen) => {
        if (!isOpen) onClose();
      }}
      title="Revert file"
      description={revertWords(file, scope)}
      action="Revert"
      onConfirm={revert}
    >
      {isBusy && <p className="tone-muted">The chat runs and may change the file. Stop it first.</p>}
    </ConfirmDialog>
  );
}

export function revertWords(file: Pick<FileDiff, "path" | "kind">, scope: Scope): string {
  if (file.kind === "added") return `${file.path} was not there ${BEFORE[scope]}. It is deleted, and this cannot be undone.`;
  return `${file.path} gets the content it had ${BEFORE[scope]}. What changed since is lost, and this cannot be undone.`;
}

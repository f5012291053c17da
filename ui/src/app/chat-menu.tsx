/** What can be done with a chat, for its row and for the top bar. */
import {
  Archive,
  ArchiveRestore,
  ArrowDown,
  ArrowUp,
  Bug,
  Download,
  FileText,
  Folder,
  GitBranch,
  Link2,
  Pencil,
  Pin,
  PinOff,
  Printer,
  Search,
  Share2,
  Shield,
  Tag as TagIcon,
  Trash2,
} from "lucide-react";
import { lazy, Suspense } from "react";
import { useLocation } from "wouter";
import { api } from "@/api/client";
import { useMe } from "@/api/queries";
import { errorWords, MenuItem, MenuSeparator } from "@/components";
import { useAmendChat } from "@/connection";
import { openPanel, printChat } from "@/platform/actions";
import { runCommand } from "@/platform/keys";
import { copyText } from "@/platform/plain-http";
import { chatPath } from "@/platform/routes";
import { createStore } from "@/platform/store";
import { toast } from "@/platform/toasts";
import { ChatPolicyDialog } from "./areas";
import { isActive, isSubagent, type ListChat } from "./sidebar/list-chat";

const report = (error: unknown) => toast({ text: errorWords(error).text, tone: "danger" });

/** A download by the browser: the cookie goes with it, and nothing is kept in memory. */
function download(chat: ListChat, format: "jsonl" | "markdown"): void {
  const link = document.createElement("a");
  link.href = `/api/v1/chats/${chat.id}/export?format=${format}`;
  link.download = "";
  link.click();
}

async function copyLink(chat: ListChat): Promise<void> {
  const url = new URL(chatPath(chat.id), window.location.href).href;
  toast((await copyText(url)) ? "Link copied" : `The browser did not allow to copy: ${url}`);
}

/** The files are copied while the new workspace is built: its panel shows how far. */
async function forkWithWorkspace(chat: ListChat, navigate: (path: string) => void): Promise<void> {
  const made = await api.POST("/api/v1/chats/{chat_id}/fork", { path: { chat_id: chat.id }, body: { workspace: "copy" }, timeoutMs: 60_000 });
  navigate(chatPath(made.id));
  toast("Files are being copied");
}

/** Archives with a way back, pins and moves. Refusals are told in a toast and undone. */
export function useChatActions() {
  const amend = useAmendChat();
  const undo = async (chat: ListChat, archived: boolean) => {
    await amend({ ...chat, archived }, { archived: !archived });
    // Archiving unpins.
    if (archived && chat.pin_order > 0) await amend({ ...chat, archived: false, pin_order: 0 }, { pin_order: chat.pin_order });
  };
  const archive = async (chat: ListChat, archived: boolean) => {
    try {
      await amend(chat, { archived });
      toast({
        text: archived ? "Archived" : "Back in the list",
        action: { label: "Undo", run: () => void undo(chat, archived).catch(report) },
      });
    } catch (error) {
      report(error);
    }
  };
  const pin = (chat: ListChat, place: number) => amend(chat, { pin_order: place }).catch(report);
  return { archive, undo, pin };
}

interface ChatMenuItemsProps {
  chat: ListChat;
  /** Of a pinned chat of the list: move it by one place. */
  onMove?: ((by: -1 | 1) => void) | undefined;
  /** How many chats are pinned; a new one comes last. */
  pinnedCount?: number | undefined;
  /** Beside the row there is no panel to open. */
  withDebug?: boolean | undefined;
}

export function ChatMenuItems({ chat, onMove, pinnedCount = 0, withDebug }: ChatMenuItemsProps) {
  const { archive, pin } = useChatActions();
  const me = useMe().data?.user;
  const isMine = me === undefined || me.id === chat.owner_id;
  const mayChange = isMine || me.role === "admin";
  const isRoot = !isSubagent(chat);
  const [, navigate] = useLocation();
  return (
    <>
      {mayChange && (
        <MenuItem icon={Pencil} onSelect={() => openChatDialog("rename", chat)}>
          Rename
        </MenuItem>
      )}
      {isMine && isRoot && !chat.archived && (
        <MenuItem icon={chat.pin_order > 0 ? PinOff : Pin} onSelect={() => void pin(chat, chat.pin_order > 0 ? 0 : pinnedCount + 1)}>
          {chat.pin_order > 0 ? "Unpin" : "Pin"}
        </MenuItem>
      )}
      {onMove && (
        <MenuItem icon={ArrowUp} onSelect={() => onMove(-1)}>
          Move up
        </MenuItem>
      )}
      {onMove && (
        <MenuItem icon={ArrowDown} onSelect={() => onMove(1)}>
          Move down
        </MenuItem>
      )}
      {isMine && chat.workspace_id != null && (
        <MenuItem icon={GitBranch} onSelect={() => void forkWithWorkspace(chat, navigate).catch(report)}>
          Fork with its workspace
        </MenuItem>
      )}
      {mayChange && isRoot && (
        <MenuItem icon={TagIcon} onSelect={() => openChatDialog("labels", chat)}>
          Labels
        </MenuItem>
      )}
      {isMine && isRoot && (
        <MenuItem icon={Folder} onSelect={() => openChatDialog("project", chat)}>
          Project
        </MenuItem>
      )}
      {isMine && (
        <MenuItem icon={Share2} onSelect={() => openChatDialog("share", chat)}>
          Share
        </MenuItem>
      )}
      {isMine && isRoot && (
        <MenuItem icon={Shield} onSelect={() => openChatDialog("policy", chat)}>
          Tool policy
        </MenuItem>
      )}
      <MenuItem icon={Link2} onSelect={() => void copyLink(chat).catch(report)}>
        Copy link
      </MenuItem>
      <MenuItem icon={Download} onSelect={() => download(chat, "jsonl")} hint="A file that any chatd can import">
        Export
      </MenuItem>
      <MenuItem icon={FileText} onSelect={() => download(chat, "markdown")}>
        Export as Markdown
      </MenuItem>
      {withDebug === true && (
        <MenuItem icon={Printer} onSelect={printChat} hint="The browser can save it as PDF">
          Print
        </MenuItem>
      )}
      {withDebug === true && (
        <MenuItem icon={Search} onSelect={() => runCommand("chat.find")}>
          Find in this chat
        </MenuItem>
      )}
      {withDebug === true && (
        <MenuItem icon={Bug} onSelect={() => openPanel("debug")}>
          Debug
        </MenuItem>
      )}
      {mayChange && isRoot && (
        <>
          <MenuSeparator />
          <MenuItem
            icon={chat.archived ? ArchiveRestore : Archive}
            disabled={!chat.archived && isActive(chat)}
            hint={!chat.archived && isActive(chat) ? "Stop it first" : undefined}
            onSelect={() => void archive(chat, !chat.archived)}
          >
            {chat.archived ? "Unarchive" : "Archive"}
          </MenuItem>
          <MenuItem icon={Trash2} danger onSelect={() => openChatDialog("delete", chat)}>
            Delete
          </MenuItem>
        </>
      )}
    </>
  );
}

// Dialogs about one chat. Any menu opens them; the shell shows them, so that they outlive the menu.

type ChatDialogKind = "rename" | "labels" | "delete" | "share" | "policy" | "project";

interface Asked {
  kind: ChatDialogKind;
  chat: ListChat;
}

const asked = createStore<Asked | null>(null);

const openChatDialog = (kind: ChatDialogKind, chat: ListChat): void => asked.set({ kind, chat });

const RenameDialog = lazy(async () => ({ default: (await import("./chat-dialogs")).RenameDialog }));
const LabelsDialog = lazy(async () => ({ default: (await import("./chat-dialogs")).LabelsDialog }));
const DeleteDialog = lazy(async () => ({ default: (await import("./chat-dialogs")).DeleteDialog }));
const ProjectDialog = lazy(async () => ({ default: (await import("./projects/project-dialogs")).ProjectDialog }));
const ShareDialog = lazy(async () => ({ default: (await import("./chat-dialogs")).ShareDialog }));

function PolicyDialog({ chat, onClose }: { chat: ListChat; onClose: () => void }) {
  const me = useMe().data?.user;
  return <ChatPolicyDialog chatId={chat.id} canEdit={me?.id === chat.owner_id} onClose={onClose} />;
}

const DIALOGS = { rename: RenameDialog, labels: LabelsDialog, share: ShareDialog, delete: DeleteDialog, policy: PolicyDialog, project: ProjectDialog } as const;

export function ChatDialogs() {
  const open = asked.use();
  if (open === null) return null;
  const Shown = DIALOGS[open.kind];
  return (
    <Suspense>
      <Shown key={open.chat.id} chat={open.chat} onClose={() => asked.set(null)} />
    </Suspense>
  );
}

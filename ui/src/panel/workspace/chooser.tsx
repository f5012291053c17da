import { useQuery } from "@tanstack/react-query";
import { Container, Unlink } from "lucide-react";
import { useState } from "react";
import { api } from "@/api/client";
import { Button, errorWords, Menu, MenuItem, MenuSeparator } from "@/components";
import { toast } from "@/platform/toasts";
import { stateOf } from "./state";

const MAX_LISTED = 30;

interface ChooserProps {
  readonly chatId: string;
  readonly current: string | null;
  readonly onChanged: () => void;
}

/** Gives the chat another workspace of its owner, or none. */
export function Chooser({ chatId, current, onChanged }: ChooserProps) {
  const [isOpen, setOpen] = useState(false);
  const list = useQuery({
    queryKey: ["panel", "workspaces"],
    queryFn: ({ signal }) => api.GET("/api/v1/workspaces", { query: { limit: MAX_LISTED }, signal }),
    enabled: isOpen,
    staleTime: 0,
  });
  const choose = async (workspaceId: string | null) => {
    try {
      await api.PATCH("/api/v1/chats/{chat_id}", { path: { chat_id: chatId }, body: { workspace_id: workspaceId } });
      onChanged();
    } catch (error) {
      toast({ text: errorWords(error).text, tone: "danger" });
    }
  };
  const others = (list.data?.items ?? []).filter((workspace) => workspace.id !== current && !workspace.deleted);
  return (
    <Menu label="Workspace of this chat" align="start" open={isOpen} onOpenChange={setOpen} trigger={<Button size="sm">{current === null ? "Choose a workspace" : "Change"}</Button>}>
      {others.map((workspace) => (
        <MenuItem key={workspace.id} icon={Container} hint={stateOf(workspace).word} onSelect={() => void choose(workspace.id)}>
          {workspace.name}
        </MenuItem>
      ))}
      {others.length === 0 && <MenuItem disabled hint={list.isPending ? undefined : "Chats make their own when a tool needs one"}>{list.isPending ? "Loading" : "No other workspace"}</MenuItem>}
      {current !== null && (
        <>
          <MenuSeparator />
          <MenuItem icon={Unlink} hint="Its files stay. The chat makes a new one when it needs it" onSelect={() => void choose(null)}>
            Detach
          </MenuItem>
        </>
      )}
    </Menu>
  );
}

import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link2, User, Users } from "lucide-react";
import { useDeferredValue, useState } from "react";
import { api } from "@/api/client";
import type { components } from "@/api/schema";
import { Button, Dialog, ErrorNote, Icon, Skeleton, TextField } from "@/components";
import { chatPath } from "@/platform/routes";
import { toast } from "@/platform/toasts";
import type { ListChat } from "../sidebar/list-chat";

type AclBody = components["schemas"]["AclBody"];
interface Reader {
  kind: "user" | "group";
  id: string;
  name: string;
  detail: string | null;
}

const userReader = (user: { id: string; username: string; name: string }): Reader => ({
  kind: "user",
  id: user.id,
  name: user.name === "" ? user.username : user.name,
  detail: user.name === "" ? null : user.username,
});
const groupReader = (group: { id: string; name: string }): Reader => ({ kind: "group", id: group.id, name: group.name, detail: "Group" });

function useReaders(chatId: string) {
  return useQuery({
    queryKey: ["acl", chatId],
    queryFn: ({ signal }) => api.GET("/api/v1/chats/{chat_id}/acl", { path: { chat_id: chatId }, signal }),
    select: (reply): Reader[] => [...reply.users.map(userReader), ...reply.groups.map(groupReader)],
  });
}

function useDirectory(text: string) {
  return useQuery({
    queryKey: ["directory", text],
    queryFn: ({ signal }) => api.GET("/api/v1/directory", { query: { q: text, limit: 8 }, signal }),
    enabled: text !== "",
    select: (reply): Reader[] => [...reply.users.map(userReader), ...reply.groups.map(groupReader)],
  });
}

function ReaderRow({ reader, action, busy, onAction }: { reader: Reader; action: string; busy: boolean; onAction: () => void }) {
  return (
    <li>
      <Icon of={reader.kind === "user" ? User : Users} className="tone-muted" />
      <span className="ui-grow ui-ellipsis">
        {reader.name} {reader.detail !== null && <span className="tone-subtle">{reader.detail}</span>}
      </span>
      <Button size="xs" busy={busy} onClick={onAction} aria-label={`${action} ${reader.name}`}>
        {action}
      </Button>
    </li>
  );
}

/** Who may read this chat with its subagents. Readers change nothing. */
export function ShareDialog({ chat, onClose }: { chat: ListChat; onClose: () => void }) {
  const rootId = chat.root_chat_id;
  const client = useQueryClient();
  const readers = useReaders(rootId);
  const [text, setText] = useState("");
  const found = useDirectory(useDeferredValue(text.trim()));
  const [busyId, setBusyId] = useState<string | null>(null);
  const [error, setError] = useState<unknown>(null);

  const change = async (reader: Reader, role: "read" | "") => {
    setBusyId(reader.id);
    setError(null);
    const roles = { [reader.id]: role } as const;
    const body: AclBody = reader.kind === "user" ? { user_roles: roles } : { group_roles: roles };
    try {
      const reply = await api.PATCH("/api/v1/chats/{chat_id}/acl", { path: { chat_id: rootId }, body });
      client.setQueryData(["acl", rootId], reply);
      if (role === "read") setText("");
    } catch (caught) {
      setError(caught);
    } finally {
      setBusyId(null);
    }
  };
  const copyLink = async () => {
    await navigator.clipboard.writeText(new URL(chatPath(rootId), window.location.href).href);
    toast("Link copied. Only people on this list can open it.");
  };
  const known = new Set((readers.data ?? []).map((reader) => reader.id));
  const addable = (found.data ?? []).filter((reader) => !known.has(reader.id));

  return (
    <Dialog
      open
      onOpenChange={onClose}
      title="Share this chat"
      description="Readers see the messages, files and subagents as they come, and change nothing."
      footer={
        <>
          <Button icon={Link2} onClick={() => void copyLink()}>
            Copy link
          </Button>
          <span className="ui-grow" />
          <Button variant="primary" onClick={onClose}>
            Done
          </Button>
        </>
      }
    >
      <TextField label="Add people or groups" placeholder="Name" value={text} autoFocus onChange={(event) => setText(event.target.value)} />
      {text.trim() !== "" && found.isSuccess && (
        <ul className="app-readers" aria-label="Found">
          {addable.length === 0 && <li className="tone-muted">Nobody of that name, or already a reader.</li>}
          {addable.map((reader) => (
            <ReaderRow key={reader.id} reader={reader} action="Add" busy={busyId === reader.id} onAction={() => void change(reader, "read")} />
          ))}
        </ul>
      )}
      {(error ?? readers.error ?? found.error) !== null && <ErrorNote error={error ?? readers.error ?? found.error} />}
      {readers.isPending && <Skeleton rows={2} />}
      {readers.data !== undefined && (
        <ul className="app-readers" aria-label="Readers">
          {readers.data.length === 0 && <li className="tone-muted">Only you, and administrators, can read it.</li>}
          {readers.data.map((reader) => (
            <ReaderRow key={reader.id} reader={reader} action="Remove" busy={busyId === reader.id} onAction={() => void change(reader, "")} />
          ))}
        </ul>
      )}
    </Dialog>
  );
}

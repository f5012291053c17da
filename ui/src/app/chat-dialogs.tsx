import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link2, Plus, Sparkles, Trash2, User, Users } from "lucide-react";
import { type SyntheticEvent, useDeferredValue, useState } from "react";
import { useLocation } from "wouter";
import { api } from "@/api/client";
import { queryKeys } from "@/api/queries";
import type { components } from "@/api/schema";
import { Button, ConfirmDialog, Dialog, ErrorNote, Icon, IconButton, Skeleton, TextField } from "@/components";
import { useAmendChat, useDeleteChat } from "@/connection";
import { copyText } from "@/platform/plain-http";
import { chatOfPath, chatPath, HOME_PATH } from "@/platform/routes";
import { toast } from "@/platform/toasts";
import { PublicLinks } from "./public-links";
import type { ListChat } from "./sidebar/list-chat";

/** A new title, typed or proposed by the model. */
export function RenameDialog({ chat, onClose }: { chat: ListChat; onClose: () => void }) {
  const amend = useAmendChat();
  const [title, setTitle] = useState(chat.title);
  const [busy, setBusy] = useState<"propose" | "save" | null>(null);
  const [error, setError] = useState<unknown>(null);

  const attempt = async (what: "propose" | "save", work: () => Promise<void>) => {
    setBusy(what);
    setError(null);
    try {
      await work();
    } catch (caught) {
      setError(caught);
    } finally {
      setBusy(null);
    }
  };
  const propose = () =>
    attempt("propose", async () => {
      const reply = await api.POST("/api/v1/chats/{chat_id}/title/propose", { path: { chat_id: chat.id } });
      setTitle(reply.title);
    });
  const save = (event: SyntheticEvent) => {
    event.preventDefault();
    const wanted = title.trim();
    if (wanted === "" || busy !== null) return;
    void attempt("save", async () => {
      if (wanted !== chat.title) await amend(chat, { title: wanted });
      onClose();
    });
  };

  return (
    <Dialog open onOpenChange={onClose} title="Rename chat">
      <form className="ui-dialog-form" onSubmit={save}>
        <TextField
          label="Title"
          value={title}
          autoFocus
          maxLength={200}
          error={title.trim() === "" ? "A chat needs a title." : undefined}
          onChange={(event) => setTitle(event.target.value)}
          onFocus={(event) => event.target.select()}
        />
        {error !== null && <ErrorNote error={error} />}
        <footer>
          <Button variant="quiet" icon={Sparkles} busy={busy === "propose"} onClick={() => void propose()}>
            Propose a title
          </Button>
          <span className="ui-grow" />
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" variant="primary" busy={busy === "save"} disabled={title.trim() === ""}>
            Rename
          </Button>
        </footer>
      </form>
    </Dialog>
  );
}

interface Row {
  key: string;
  value: string;
}

/** Rows without a name are dropped; a name twice is refused. */
function labelsOf(rows: readonly Row[]): { labels: Record<string, string>; repeated: string | null } {
  const labels: Record<string, string> = {};
  for (const { key, value } of rows.map((row) => ({ key: row.key.trim(), value: row.value.trim() }))) {
    if (key === "") continue;
    if (key in labels) return { labels, repeated: key };
    labels[key] = value;
  }
  return { labels, repeated: null };
}

/** Names and values that chats are found and filtered by. */
export function LabelsDialog({ chat, onClose }: { chat: ListChat; onClose: () => void }) {
  const amend = useAmendChat();
  const [rows, setRows] = useState<Row[]>(() => [...Object.entries(chat.labels).map(([key, value]) => ({ key, value })), { key: "", value: "" }]);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const { labels, repeated } = labelsOf(rows);
  const setRow = (index: number, change: Partial<Row>) => setRows(rows.map((row, at) => (at === index ? { ...row, ...change } : row)));

  const save = async () => {
    setBusy(true);
    setError(null);
    try {
      await amend(chat, { labels });
      onClose();
    } catch (caught) {
      setError(caught);
      setBusy(false);
    }
  };
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    if (!busy && repeated === null) void save();
  };

  return (
    <Dialog open onOpenChange={onClose} title="Labels" description="Filter the list by them, or search for label:team:blue.">
      <form className="ui-dialog-form" onSubmit={submit}>
        <ul className="app-label-rows">
          {rows.map((row, index) => (
            <li key={index}>
              <div className="ui-field">
                <input
                  aria-label={`Name of label ${index + 1}`}
                  placeholder="team"
                  value={row.key}
                  onChange={(event) => setRow(index, { key: event.target.value })}
                />
              </div>
              <div className="ui-field">
                <input
                  aria-label={`Value of label ${index + 1}`}
                  placeholder="blue"
                  value={row.value}
                  onChange={(event) => setRow(index, { value: event.target.value })}
                />
              </div>
              <IconButton icon={Trash2} label={`Remove label ${index + 1}`} onClick={() => setRows(rows.filter((_, at) => at !== index))} />
            </li>
          ))}
        </ul>
        {repeated !== null && <p className="tone-danger">The name “{repeated}” is there twice.</p>}
        {error !== null && <ErrorNote error={error} />}
        <footer>
          <Button variant="quiet" icon={Plus} onClick={() => setRows([...rows, { key: "", value: "" }])}>
            Add a label
          </Button>
          <span className="ui-grow" />
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" variant="primary" busy={busy} disabled={repeated !== null}>
            Save
          </Button>
        </footer>
      </form>
    </Dialog>
  );
}

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
    queryKey: queryKeys.chatAccess(chatId),
    queryFn: ({ signal }) => api.GET("/api/v1/chats/{chat_id}/acl", { path: { chat_id: chatId }, signal }),
    select: (reply): Reader[] => [...reply.users.map(userReader), ...reply.groups.map(groupReader)],
  });
}

function useDirectory(text: string) {
  return useQuery({
    queryKey: queryKeys.directory(text),
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
      client.setQueryData(queryKeys.chatAccess(rootId), reply);
      if (role === "read") setText("");
    } catch (caught) {
      setError(caught);
    } finally {
      setBusyId(null);
    }
  };
  const copyLink = async () => {
    const url = new URL(chatPath(rootId), window.location.href).href;
    toast((await copyText(url)) ? "Link copied. Only people on this list can open it." : `The browser did not allow to copy: ${url}`);
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
      <PublicLinks chatId={rootId} />
    </Dialog>
  );
}

export function DeleteDialog({ chat, onClose }: { chat: ListChat; onClose: () => void }) {
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
          “{chat.title}”{subagents > 0 && `, with its ${subagents === 1 ? "subagent" : `${subagents} subagents`},`} is deleted for good. Archive it instead to
          keep it out of the list.
        </>
      }
      action="Delete"
      onConfirm={confirm}
    />
  );
}

import { Plus, Trash2 } from "lucide-react";
import { type SyntheticEvent, useState } from "react";
import { Button, Dialog, ErrorNote, IconButton } from "@/components";
import { useAmendChat } from "@/connection";
import type { ListChat } from "../sidebar/list-chat";

interface Row {
  key: string;
  value: string;
}

/** Rows without a name are dropped; a name twice is refused. */
export function labelsOf(rows: readonly Row[]): { labels: Record<string, string>; repeated: string | null } {
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
  const [rows, setRows] = useState<Row[]>(() => [
    ...Object.entries(chat.labels).map(([key, value]) => ({ key, value })),
    { key: "", value: "" },
  ]);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const { labels, repeated } = labelsOf(rows);
  const setRow = (index: number, change: Partial<Row>) =>
    setRows(rows.map((row, at) => (at === index ? { ...row, ...change } : row)));

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
                <input aria-label={`Name of label ${index + 1}`} placeholder="team" value={row.key} onChange={(event) => setRow(index, { key: event.target.value })} />
              </div>
              <div className="ui-field">
                <input aria-label={`Value of label ${index + 1}`} placeholder="blue" value={row.value} onChange={(event) => setRow(index, { value: event.target.value })} />
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

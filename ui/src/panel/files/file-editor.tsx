/** Edits a small text file. It is saved only over the version that was loaded. */
import { type KeyboardEvent, useState } from "react";
import { api, ApiError } from "@/api/client";
import { Button, ErrorNote } from "@/components";
import { toast } from "@/platform/toasts";
import { loadPiece } from "./file-content";

interface FileEditorProps {
  readonly chatId: string;
  readonly path: string;
  readonly text: string;
  readonly version: string;
  readonly onSaved: () => void;
  readonly onCancel: () => void;
}

export default function FileEditor({ chatId, path, text, version, onSaved, onCancel }: FileEditorProps) {
  const [draft, setDraft] = useState(text);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const isChanged = error instanceof ApiError && error.code === "file_changed";

  const save = async (find: () => Promise<string>) => {
    setBusy(true);
    setError(null);
    try {
      await api.PUT("/api/v1/chats/{chat_id}/workspace/file", {
        path: { chat_id: chatId },
        query: { path, version: await find() },
        body: new Blob([draft], { type: "text/plain" }),
        headers: { "Content-Type": "text/plain" },
      });
      toast(`${path} is saved.`);
      onSaved();
    } catch (caught) {
      setError(caught);
    } finally {
      setBusy(false);
    }
  };
  const overwrite = () => save(async () => (await loadPiece(chatId, path, null, new AbortController().signal)).version);
  const onKeyDown = (event: KeyboardEvent<HTMLTextAreaElement>) => {
    if (event.key !== "s" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    void save(() => Promise.resolve(version));
  };

  return (
    <div className="files-editor">
      {error !== null && (
        <ErrorNote
          error={error}
          action={
            isChanged && (
              <>
                <Button size="sm" onClick={onSaved}>
                  Drop mine, load again
                </Button>
                <Button size="sm" variant="danger" onClick={() => void overwrite()}>
                  Overwrite
                </Button>
              </>
            )
          }
        />
      )}
      <textarea aria-label={`Text of ${path}`} spellCheck={false} value={draft} onChange={(event) => setDraft(event.target.value)} onKeyDown={onKeyDown} />
      <div className="panel-bar">
        <span className="ui-grow tone-muted">{draft === text ? "No changes" : "Not saved yet"}</span>
        <Button size="sm" variant="quiet" onClick={onCancel}>
          Cancel
        </Button>
        <Button size="sm" variant="primary" busy={busy} disabled={draft === text} onClick={() => void save(() => Promise.resolve(version))}>
          Save
        </Button>
      </div>
    </div>
  );
}

import { Sparkles } from "lucide-react";
import { type SyntheticEvent, useState } from "react";
import { api } from "@/api/client";
import { Button, Dialog, ErrorNote, TextField } from "@/components";
import { useAmendChat } from "@/connection";
import type { ListChat } from "../sidebar/list-chat";

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

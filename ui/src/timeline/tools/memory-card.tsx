/** A note that the model proposes. Nothing is kept before the user accepts it, and its text is shown as it is. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Brain } from "lucide-react";
import { useId, useState } from "react";
import { api, ApiError } from "@/api/client";
import { queryKeys } from "@/api/queries";
import type { components } from "@/api/schema";
import { Button, StatusIcon } from "@/components";
import { useChatDetails } from "@/connection";
import { announce } from "@/platform/toasts";
import { ExactText } from "@/text/exact-text";
import { told, useTimelineActions } from "../actions";
import { asObject, textOf } from "../rows/json";
import { type CardProps, ToolFrame } from "./frame";

type Note = components["schemas"]["NoteReply"];

const MAX_CHARS = 500;
const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;

/** Without a session, as on the page of a public link, there is only the text. */
export function MemoryCard(props: CardProps) {
  const { chatId } = useTimelineActions();
  const id = textOf(asObject(props.call.result), "note_id");
  if (props.call.state !== "done" || chatId === "" || !UUID.test(id)) return <NoteFrame {...props} note={null} />;
  return <StoredNote {...props} id={id} />;
}

/** What can be decided is the note that the server has, whatever the result of the call says. */
function StoredNote({ id, ...props }: CardProps & { readonly id: string }) {
  const found = useQuery({ queryKey: queryKeys.note(id), queryFn: ({ signal }) => readNote(id, signal) });
  const note = found.data ?? null;
  if (note?.state === "proposed") return <ProposalForm note={note} />;
  return <NoteFrame {...props} note={note} meta={outcome(note, found.isSuccess)} />;
}

function NoteFrame({ call, rowKey, note, meta }: CardProps & { readonly note: Note | null; readonly meta?: string | undefined }) {
  const text = note?.text ?? (textOf(asObject(call.result), "text") || textOf(call.args, "text"));
  return (
    <ToolFrame call={call} rowKey={rowKey} icon={Brain} meta={meta}>
      {text !== "" && (
        <pre className="ask-command tool-note">
          <ExactText text={text} />
        </pre>
      )}
    </ToolFrame>
  );
}

/** Null: there is no such note of this user any more, or it is another's. */
async function readNote(id: string, signal: AbortSignal): Promise<Note | null> {
  try {
    return await api.GET("/api/v1/memory/notes/{note_id}", { path: { note_id: id }, signal });
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return null;
    throw error;
  }
}

function outcome(note: Note | null, isKnown: boolean): string | undefined {
  if (note === null) return isKnown ? "Not kept" : undefined;
  if (note.state === "dismissed") return "Dismissed";
  return note.enabled ? "Kept" : "Kept, switched off";
}

function ProposalForm({ note }: { readonly note: Note }) {
  const client = useQueryClient();
  const { chatId } = useTimelineActions();
  const project = useChatDetails(chatId).data?.project_id ?? null;
  const [sent, setSent] = useState<"accept" | "dismiss" | null>(null);
  const [draft, setDraft] = useState<string | null>(null);
  const [ofProject, setOfProject] = useState(false);
  const field = useId();
  const decide = async (what: "accept" | "dismiss") => {
    if (sent !== null) return;
    setSent(what);
    const path = { note_id: note.id };
    const body = { ...(draft === null ? {} : { text: draft }), project_id: ofProject ? project : null };
    try {
      const decided = await told(
        what === "accept" ? api.POST("/api/v1/memory/notes/{note_id}/accept", { path, body }) : api.POST("/api/v1/memory/notes/{note_id}/dismiss", { path }),
      );
      client.setQueryData(queryKeys.note(note.id), decided);
      announce(decided.state === "kept" ? "The note is kept" : "The note is dismissed");
    } catch {
      // Another tab may have decided.
      void client.invalidateQueries({ queryKey: queryKeys.note(note.id) });
    }
    void client.invalidateQueries({ queryKey: queryKeys.settings("memory") });
    setSent(null);
  };
  return (
    <section className="ask-card" aria-label="Proposed note" tabIndex={0}>
      <header>
        <StatusIcon status="requires_action" decorative />
        Keep this note for later chats?
      </header>
      <div className="ask-body">
        {draft === null ? (
          <pre className="ask-command" aria-label="Note" tabIndex={0}>
            <ExactText text={note.text} />
          </pre>
        ) : (
          <label className="ask-deny" htmlFor={field}>
            <span>The note, as it is kept</span>
            <textarea
              id={field}
              className="ui-textarea"
              rows={3}
              maxLength={MAX_CHARS}
              autoFocus
              value={draft}
              onChange={(event) => setDraft(event.target.value)}
            />
          </label>
        )}
        {project !== null && (
          <label className="ask-small">
            <input type="checkbox" checked={ofProject} onChange={(event) => setOfProject(event.target.checked)} /> Only for the chats of this project; its
            members who may write see it
          </label>
        )}
      </div>
      <footer>
        <Button size="sm" variant="primary" busy={sent === "accept"} disabled={draft?.trim() === ""} onClick={() => void decide("accept")}>
          {draft === null ? "Accept" : "Accept the edited note"}
        </Button>
        {draft === null && (
          <Button size="sm" onClick={() => setDraft(note.text)}>
            Edit
          </Button>
        )}
        <Button size="sm" variant="quiet" busy={sent === "dismiss"} onClick={() => void decide("dismiss")}>
          Dismiss
        </Button>
      </footer>
    </section>
  );
}

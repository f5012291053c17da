/** Notes that the models of the user's chats are told, and those that models have proposed. */
import { ArrowDown, ArrowUp, Brain, Check, Pencil, Plus, Trash2, X } from "lucide-react";
import { type SyntheticEvent, useState } from "react";
import { api } from "@/api/client";
import type { components } from "@/api/schema";
import { Button, ConfirmDialog, Drawer, EmptyState, ErrorNote, Field, IconButton, Segmented, Switch } from "@/components";
import { ExactText } from "@/text/exact-text";
import { Loaded, readAll, Section, SettingRow, SettingsPage, useResource, useSave } from "../frame";
import { fieldErrors } from "../server/provider-drawer";

type Note = components["schemas"]["NoteReply"];
type Settings = components["schemas"]["UserSettingsReply"];

const MAX_CHARS = 500;
const NOTES = [["memory"]] as const;
const CHOICES: readonly { value: Settings["memory"]; label: string }[] = [
  { value: "off", label: "Off" },
  { value: "notes", label: "My notes" },
  { value: "proposals", label: "Notes and proposals" },
];

export function MemoryPage() {
  const mine = useResource(["memory", "choice"], () => api.GET("/api/v1/settings/me"));
  return (
    <SettingsPage title="Memory" lead="Short notes that the models of your chats are told. Only what you write or accept is kept, and nobody else sees it.">
      <Loaded query={mine}>{(settings) => <Memory settings={settings} />}</Loaded>
    </SettingsPage>
  );
}

function Memory({ settings }: { settings: Settings }) {
  const [project, setProject] = useState("");
  const save = useSave((memory: Settings["memory"]) => api.PATCH("/api/v1/settings/me", { body: { memory } }), { refresh: NOTES });
  const projects = useResource(["memory", "projects"], () => readAll((query) => api.GET("/api/v1/projects", { query })));
  const writable = (projects.data ?? []).filter((one) => one.role !== "reader");
  return (
    <>
      <div className="settings-card">
        <SettingRow
          title="What models are told"
          hint={
            settings.memory_allowed
              ? "With proposals, a model may suggest a note. It is kept only if you accept it. A change counts from the next answer on."
              : "An administrator has switched notes off for this server. Models are told none."
          }
        >
          <Segmented label="What models are told" value={settings.memory} options={CHOICES} onChange={(value) => save.mutate(value)} />
        </SettingRow>
      </div>
      <Proposals />
      <Notes
        key={project}
        project={project === "" ? null : project}
        canAdd={settings.memory_allowed}
        scope={
          writable.length === 0 ? null : (
            <select className="ui-select" aria-label="Whose notes" value={project} onChange={(event) => setProject(event.target.value)}>
              <option value="">All my chats</option>
              {writable.map((one) => (
                <option key={one.id} value={one.id}>
                  {one.name}
                </option>
              ))}
            </select>
          )
        }
      />
    </>
  );
}

function Proposals() {
  const proposed = useResource(["memory", "proposed"], () => readAll((query) => api.GET("/api/v1/memory/notes", { query: { ...query, state: "proposed" } })));
  const accept = useSave((id: string) => api.POST("/api/v1/memory/notes/{note_id}/accept", { path: { note_id: id }, body: {} }), {
    refresh: NOTES,
    done: "Kept.",
  });
  const dismiss = useSave((id: string) => api.POST("/api/v1/memory/notes/{note_id}/dismiss", { path: { note_id: id } }), { refresh: NOTES });
  const list = proposed.data ?? [];
  if (list.length === 0) return null;
  return (
    <Section title="Proposed by models" hint="Decide on each">
      <div className="settings-card">
        {list.map((note) => (
          <SettingRow key={note.id} title={<NoteText note={note} />}>
            <IconButton icon={Check} label={`Accept: ${note.text}`} onClick={() => accept.mutate(note.id)} />
            <IconButton icon={X} label={`Dismiss: ${note.text}`} onClick={() => dismiss.mutate(note.id)} />
          </SettingRow>
        ))}
      </div>
    </Section>
  );
}

const NoteText = ({ note }: { note: Note }) => (
  <span className="settings-note">
    <ExactText text={note.text} />
  </span>
);

function Notes({ project, canAdd, scope }: { project: string | null; canAdd: boolean; scope: React.ReactNode }) {
  const notes = useResource(["memory", "kept", project], () =>
    readAll((query) => api.GET("/api/v1/memory/notes", { query: { ...query, ...(project === null ? {} : { project_id: project }) } })),
  );
  const [opened, setOpened] = useState<Note | "new" | null>(null);
  const [deleting, setDeleting] = useState<Note | null>(null);
  const change = useSave(
    ({ id, body }: { id: string; body: components["schemas"]["PatchNoteBody"] }) =>
      api.PATCH("/api/v1/memory/notes/{note_id}", { path: { note_id: id }, body }),
    { refresh: NOTES },
  );
  const move = (note: Note, place: number) => change.mutate({ id: note.id, body: { place } });
  return (
    <Section
      title="Notes"
      end={
        <>
          {scope}
          <Button icon={Plus} disabled={!canAdd} onClick={() => setOpened("new")}>
            Add a note
          </Button>
        </>
      }
    >
      <Loaded query={notes}>
        {(list) =>
          list.length === 0 ? (
            <EmptyState icon={Brain}>No notes yet. Write one here, or type /remember and a text in a chat.</EmptyState>
          ) : (
            <div className="settings-card">
              {list.map((note, place) => (
                <SettingRow key={note.id} title={<NoteText note={note} />}>
                  <IconButton icon={ArrowUp} label={`Move up: ${note.text}`} disabled={place === 0} onClick={() => move(note, place)} />
                  <IconButton icon={ArrowDown} label={`Move down: ${note.text}`} disabled={place === list.length - 1} onClick={() => move(note, place + 2)} />
                  <IconButton icon={Pencil} label={`Edit: ${note.text}`} onClick={() => setOpened(note)} />
                  <IconButton icon={Trash2} label={`Delete: ${note.text}`} onClick={() => setDeleting(note)} />
                  <Switch
                    label={`Tell models: ${note.text}`}
                    checked={note.enabled}
                    onChange={(enabled) => change.mutate({ id: note.id, body: { enabled } })}
                  />
                </SettingRow>
              ))}
            </div>
          )
        }
      </Loaded>
      {opened !== null && (
        <NoteDrawer key={opened === "new" ? "new" : opened.id} note={opened === "new" ? null : opened} project={project} onClose={() => setOpened(null)} />
      )}
      {deleting !== null && <DeleteDialog note={deleting} onClose={() => setDeleting(null)} />}
    </Section>
  );
}

function DeleteDialog({ note, onClose }: { note: Note; onClose: () => void }) {
  const remove = useSave(() => api.DELETE("/api/v1/memory/notes/{note_id}", { path: { note_id: note.id } }), { refresh: NOTES, quiet: true });
  return (
    <ConfirmDialog
      open
      onOpenChange={(open) => {
        if (!open) onClose();
      }}
      title="Delete this note?"
      description="Chats that are open are told that it no longer applies. What they have written stays."
      action="Delete"
      onConfirm={() => remove.mutateAsync(undefined)}
    />
  );
}

function NoteDrawer({ note, project, onClose }: { note: Note | null; project: string | null; onClose: () => void }) {
  const [text, setText] = useState(note?.text ?? "");
  const saving = useSave(
    () =>
      note === null
        ? api.POST("/api/v1/memory/notes", { body: { text, project_id: project } })
        : api.PATCH("/api/v1/memory/notes/{note_id}", { path: { note_id: note.id }, body: { text } }),
    { refresh: NOTES, quiet: true, done: "Saved. The next answers know it.", onDone: onClose },
  );
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    saving.mutate(undefined);
  };
  return (
    <Drawer
      open
      onOpenChange={(open) => {
        if (!open) onClose();
      }}
      title={note === null ? "Add a note" : "Edit the note"}
      footer={
        <>
          <Button type="submit" form="note" variant="primary">
            Save
          </Button>
          <Button variant="quiet" onClick={onClose}>
            Discard
          </Button>
        </>
      }
    >
      <form id="note" className="settings-form" onSubmit={submit}>
        <Field label="Note" wide hint={`One fact or preference, at most ${MAX_CHARS} characters.`} error={fieldErrors(saving.error).get("text")}>
          {(names) => (
            <textarea
              {...names}
              className="ui-textarea"
              rows={5}
              required
              maxLength={MAX_CHARS}
              value={text}
              onChange={(event) => setText(event.target.value)}
            />
          )}
        </Field>
        {saving.error !== null && (
          <div className="ui-form-field is-wide">
            <ErrorNote error={saving.error} />
          </div>
        )}
      </form>
    </Drawer>
  );
}

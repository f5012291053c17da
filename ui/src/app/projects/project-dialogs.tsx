/** Dialogs: a new project, and the project of a chat. */
import "@/styles/projects.css";
import { Folder } from "lucide-react";
import { type SyntheticEvent, useState } from "react";
import { useLocation } from "wouter";
import { api } from "@/api/client";
import { Button, Dialog, ErrorNote, Icon, Skeleton, TextField } from "@/components";
import { useAmendChat } from "@/connection";
import { projectPath } from "@/platform/routes";
import { toast } from "@/platform/toasts";
import type { ListChat } from "../sidebar/list-chat";
import { type Project, useProjects, useRefreshProjects } from "./project-queries";

export function NewProjectDialog({ onClose }: { onClose: () => void }) {
  const [, navigate] = useLocation();
  const refresh = useRefreshProjects();
  const [name, setName] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const create = async () => {
    setBusy(true);
    setError(null);
    try {
      const made = await api.POST("/api/v1/projects", { body: { name: name.trim() } });
      refresh();
      onClose();
      navigate(projectPath(made.id));
    } catch (caught) {
      setError(caught);
      setBusy(false);
    }
  };
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    if (!busy && name.trim() !== "") void create();
  };
  return (
    <Dialog open onOpenChange={onClose} title="New project" description="Its chats get the same instructions and files.">
      <form className="ui-dialog-form" onSubmit={submit}>
        <TextField label="Name" value={name} autoFocus maxLength={100} placeholder="Billing" onChange={(event) => setName(event.target.value)} />
        {error !== null && <ErrorNote error={error} />}
        <footer>
          <span className="ui-grow" />
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" variant="primary" busy={busy} disabled={name.trim() === ""}>
            Create
          </Button>
        </footer>
      </form>
    </Dialog>
  );
}

const mayAdd = (project: Project): boolean => project.role !== "reader";

/** Puts a chat into a project, or out of it. What others will see is said before. */
export function ProjectDialog({ chat, onClose }: { chat: ListChat; onClose: () => void }) {
  const amend = useAmendChat();
  const refresh = useRefreshProjects();
  const projects = useProjects();
  const [chosen, setChosen] = useState(chat.project_id ?? "");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const target = projects.data?.find((one) => one.id === chosen);
  const others = (target?.member_count ?? 1) - 1;
  const save = async () => {
    setBusy(true);
    setError(null);
    try {
      await amend(chat, { project_id: chosen === "" ? null : chosen });
      refresh();
      toast(target === undefined ? "The chat is in no project." : `The chat is in ${target.name}.`);
      onClose();
    } catch (caught) {
      setError(caught);
      setBusy(false);
    }
  };
  return (
    <Dialog
      open
      onOpenChange={onClose}
      title="Project of this chat"
      footer={
        <>
          <span className="ui-grow" />
          <Button onClick={onClose}>Cancel</Button>
          <Button variant="primary" busy={busy} disabled={chosen === (chat.project_id ?? "")} onClick={() => void save()}>
            Move
          </Button>
        </>
      }
    >
      {projects.isPending && <Skeleton rows={3} label="Loading projects" />}
      <fieldset className="projects-choices">
        <legend className="ui-sr-only">Project</legend>
        <label>
          <input type="radio" name="project" checked={chosen === ""} onChange={() => setChosen("")} />
          No project
        </label>
        {projects.data?.filter(mayAdd).map((one) => (
          <label key={one.id}>
            <input type="radio" name="project" checked={chosen === one.id} onChange={() => setChosen(one.id)} />
            <Icon of={Folder} className="tone-muted" />
            {one.name}
          </label>
        ))}
      </fieldset>
      {others > 0 && (
        <p className="tone-muted" role="status">
          {others === 1 ? "The other member" : `The ${others} other members`} of {target?.name} can read the chat then, with its files and subagents.
        </p>
      )}
      {(error ?? projects.error) !== null && <ErrorNote error={error ?? projects.error} />}
    </Dialog>
  );
}

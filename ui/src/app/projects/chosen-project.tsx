/** Where a chat belongs: above its messages, and above the box of a new one. */
import "@/styles/projects.css";
import { Folder } from "lucide-react";
import { Link, useLocation } from "wouter";
import { Chip, Icon } from "@/components";
import { NEW_CHAT_PATH, projectPath } from "@/platform/routes";
import { useProjects } from "./project-queries";

/** The project of an open chat, for those who belong to it. */
export function ProjectLink({ id }: { id: string }) {
  const project = useProjects().data?.find((one) => one.id === id);
  if (project === undefined) return null;
  return (
    <Link className="projects-link ui-ellipsis tone-muted" href={projectPath(id)} aria-label={`Project ${project.name}`}>
      <Icon of={Folder} size="sm" />
      <span className="ui-ellipsis">{project.name}</span>
    </Link>
  );
}

const RECENT = 4;

/** Chooses the project of a new chat: those that were changed last are offered. */
export function NewChatProject({ id }: { id: string | null }) {
  const [, navigate] = useLocation();
  const projects = (useProjects().data ?? []).filter((one) => one.role !== "reader");
  const chosen = projects.find((one) => one.id === id);
  if (projects.length === 0) return null;
  if (chosen !== undefined) {
    return (
      <div className="projects-chosen">
        <Chip onRemove={() => navigate(NEW_CHAT_PATH, { replace: true })} removeLabel="Begin outside of the project">
          {chosen.name}
        </Chip>
        {chosen.member_count > 1 && <span className="tone-muted">Its members can read the chat.</span>}
      </div>
    );
  }
  const recent = projects.toSorted((a, b) => Date.parse(b.updated_at) - Date.parse(a.updated_at)).slice(0, RECENT);
  return (
    <div className="projects-chosen" role="group" aria-label="Begin in a project">
      {recent.map((one) => (
        <button key={one.id} type="button" className="ui-button is-sm" onClick={() => navigate(`${NEW_CHAT_PATH}?project=${one.id}`, { replace: true })}>
          <Icon of={Folder} size="sm" />
          {one.name}
        </button>
      ))}
    </div>
  );
}

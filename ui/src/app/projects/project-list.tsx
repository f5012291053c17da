/** The projects in the sidebar, and the page that lists them all. */
import "@/styles/projects.css";
import { Folder, Plus } from "lucide-react";
import { useState } from "react";
import { Link, useLocation } from "wouter";
import { Button, classes, EmptyState, ErrorNote, Icon, IconButton, Skeleton } from "@/components";
import { projectOfPath, projectPath, PROJECTS_PATH } from "@/platform/routes";
import { createStore } from "@/platform/store";
import { plural } from "@/platform/words";
import { SidebarButton } from "../top-bar";
import { NewProjectDialog } from "./project-dialogs";
import { type Project, useProjects } from "./project-queries";

const SHOWN = 5;
/** Outside of the section: the sidebar may be drawn anew while the dialog is open. */
const making = createStore(false);

/** The first of them by name; a page has all. */
export function SidebarProjects() {
  const projects = useProjects().data ?? [];
  const [path] = useLocation();
  const open = projectOfPath(path);
  const isMaking = making.use();
  const first = projects.slice(0, SHOWN);
  const opened = projects.find((one) => one.id === open);
  const shown = opened === undefined || first.includes(opened) ? first : [...first.slice(0, SHOWN - 1), opened];
  return (
    <section className="projects-side" aria-label="Projects">
      <div className="sidebar-section">
        <span className="ui-grow">Projects</span>
        <IconButton icon={Plus} label="New project" onClick={() => making.set(true)} />
      </div>
      <ul>
        {shown.map((one) => (
          <li key={one.id}>
            <Link
              className={classes("projects-side-link", one.id === open && "is-current")}
              href={projectPath(one.id)}
              aria-current={one.id === open ? "page" : undefined}
            >
              <Icon of={Folder} className="tone-muted" />
              <span className="ui-grow ui-ellipsis">{one.name}</span>
            </Link>
          </li>
        ))}
        {projects.length > SHOWN && (
          <li>
            <Link className="projects-side-link tone-muted" href={PROJECTS_PATH}>
              All {projects.length} projects
            </Link>
          </li>
        )}
      </ul>
      {isMaking && <NewProjectDialog onClose={() => making.set(false)} />}
    </section>
  );
}

const ownerOf = (project: Project): string => (project.role === "owner" ? "Yours" : `Of ${project.owner_username}`);

export function ProjectsPage() {
  const projects = useProjects();
  const [isMaking, setMaking] = useState(false);
  return (
    <>
      <header className="app-bar">
        <SidebarButton />
        <h1 className="ui-grow">Projects</h1>
        <Button icon={Plus} onClick={() => setMaking(true)}>
          New project
        </Button>
      </header>
      <div className="app-search-page">
        {projects.isPending && <Skeleton rows={4} label="Loading projects" />}
        {projects.error !== null && <ErrorNote error={projects.error} />}
        {projects.data?.length === 0 && (
          <EmptyState icon={Folder}>No projects yet. A project gives its chats the same instructions and files, and people to read them.</EmptyState>
        )}
        <ul className="projects-rows">
          {projects.data?.map((one) => (
            <li key={one.id}>
              <Link className="projects-row" href={projectPath(one.id)}>
                <Icon of={Folder} className="tone-muted" />
                <span className="ui-strong ui-grow ui-ellipsis">{one.name}</span>
                <span className="tone-muted">
                  {ownerOf(one)} · {plural(one.chat_count, "chat")}
                </span>
              </Link>
            </li>
          ))}
        </ul>
      </div>
      {isMaking && <NewProjectDialog onClose={() => setMaking(false)} />}
    </>
  );
}

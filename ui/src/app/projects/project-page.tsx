/** A project: its chats, instructions, files, members and defaults. Only writers change it, and only its owner decides about members. */
import "@/styles/projects.css";
import { useQuery } from "@tanstack/react-query";
import { FileText, Folder, MessageSquarePlus, Trash2, Upload } from "lucide-react";
import { type DragEvent, type SyntheticEvent, useDeferredValue, useMemo, useRef, useState } from "react";
import { Link, useLocation } from "wouter";
import { api, ApiError } from "@/api/client";
import { queryKeys, useMe, useModels } from "@/api/queries";
import { Button, classes, ConfirmDialog, EmptyState, ErrorNote, Field, Icon, IconButton, Skeleton, StatusIcon, TextField, Time } from "@/components";
import { useChatList } from "@/connection";
import { chatPath, NEW_CHAT_PATH, PROJECTS_PATH } from "@/platform/routes";
import { toast } from "@/platform/toasts";
import { plural } from "@/platform/words";
import { shownStatus } from "../sidebar/list-chat";
import { SidebarButton } from "../top-bar";
import { addFile, type Member, type Project, useMembers, useProject, useProjectFiles, useRefreshProjects } from "./project-queries";

/** One change at a time, with what went wrong with the last. */
function useChange(): { busy: boolean; error: unknown; change: (work: () => Promise<unknown>, done?: string) => Promise<boolean> } {
  const refresh = useRefreshProjects();
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const change = async (work: () => Promise<unknown>, done?: string) => {
    setBusy(true);
    setError(null);
    try {
      await work();
      if (done !== undefined) toast(done);
      return true;
    } catch (caught) {
      setError(caught);
      return false;
    } finally {
      setBusy(false);
      refresh();
    }
  };
  return { busy, error, change };
}

const ofProject = (project: Project) => ({ project_id: project.id });

function Texts({ project, mayEdit }: { project: Project; mayEdit: boolean }) {
  const [name, setName] = useState(project.name);
  const [text, setText] = useState(project.instructions);
  const [version, setVersion] = useState(project.version);
  const { busy, error, change } = useChange();
  const isChanged = name !== project.name || text !== project.instructions;
  const save = (event: SyntheticEvent) => {
    event.preventDefault();
    void change(async () => {
      const body = { name: name.trim(), instructions: text, version };
      const saved = await api.PATCH("/api/v1/projects/{project_id}", { path: ofProject(project), body });
      setName(saved.name);
      setText(saved.instructions);
      setVersion(saved.version);
    }, "Saved. Its chats are told at their next step.");
  };
  const isStale = error instanceof ApiError && error.code === "version_conflict";
  return (
    <form className="projects-part" onSubmit={save}>
      <h2>Instructions</h2>
      {mayEdit && <TextField label="Name" value={name} maxLength={100} onChange={(event) => setName(event.target.value)} />}
      <Field label="What the models of its chats are told" hint="Markdown, at most 32 KiB.">
        {(names) => (
          <textarea
            {...names}
            className="ui-textarea"
            rows={6}
            readOnly={!mayEdit}
            value={text}
            placeholder="Which repository it is about, how to write, what to leave alone …"
            onChange={(event) => setText(event.target.value)}
          />
        )}
      </Field>
      {error !== null && <ErrorNote error={error} />}
      {isStale && (
        <Button size="xs" onClick={() => setVersion(project.version)}>
          Keep my text instead
        </Button>
      )}
      {mayEdit && (
        <Button type="submit" variant="primary" busy={busy} disabled={!isChanged || name.trim() === ""}>
          Save
        </Button>
      )}
    </form>
  );
}

function sizeText(bytes: number): string {
  return bytes < 1024 ? `${bytes} bytes` : `${Math.ceil(bytes / 1024).toLocaleString("en")} KiB`;
}

function Files({ project, mayEdit }: { project: Project; mayEdit: boolean }) {
  const files = useProjectFiles(project.id);
  const { busy, error, change } = useChange();
  const [isOver, setOver] = useState(false);
  const input = useRef<HTMLInputElement>(null);
  const add = (given: readonly File[]) =>
    void change(async () => {
      for (const file of given) await addFile(project.id, file);
    });
  const drop = (event: DragEvent) => {
    event.preventDefault();
    setOver(false);
    if (mayEdit && !busy) add([...event.dataTransfer.files]);
  };
  return (
    <section
      className={classes("projects-part", isOver && mayEdit && "is-over")}
      aria-label="Files"
      onDragOver={(event) => {
        event.preventDefault();
        setOver(true);
      }}
      onDragLeave={() => setOver(false)}
      onDrop={drop}
    >
      <h2>Files</h2>
      <p className="tone-muted">Models are told the text of short files and read the others when they need them.</p>
      {files.error !== null && <ErrorNote error={files.error} />}
      {files.data !== undefined && files.data.length > 0 && (
        <ul className="app-readers">
          {files.data.map((file) => (
            <li key={file.id}>
              <Icon of={FileText} className="tone-muted" />
              <a className="ui-grow ui-ellipsis" href={`/api/v1/files/${file.id}/content`} download={file.name}>
                {file.name}
              </a>
              <span className="tone-subtle">{sizeText(file.size_bytes)}</span>
              {mayEdit && (
                <IconButton
                  icon={Trash2}
                  label={`Remove ${file.name}`}
                  disabled={busy}
                  onClick={() =>
                    void change(() => api.DELETE("/api/v1/projects/{project_id}/files/{file_id}", { path: { ...ofProject(project), file_id: file.id } }))
                  }
                />
              )}
            </li>
          ))}
        </ul>
      )}
      {error !== null && <ErrorNote error={error} />}
      {mayEdit && (
        <div className="projects-actions">
          <input
            ref={input}
            type="file"
            multiple
            hidden
            onChange={(event) => {
              add([...(event.target.files ?? [])]);
              event.target.value = "";
            }}
          />
          <Button icon={Upload} busy={busy} onClick={() => input.current?.click()}>
            Add files
          </Button>
          <span className="tone-subtle">or drop them here</span>
        </div>
      )}
    </section>
  );
}

function MemberRow({ project, member, meId }: { project: Project; member: Member; meId: string | undefined }) {
  const { busy, error, change } = useChange();
  const mayManage = project.role === "owner" && member.role !== "owner";
  const path = { ...ofProject(project), user_id: member.id };
  return (
    <li>
      <span className="ui-grow ui-ellipsis">
        {member.name === "" ? member.username : member.name} {member.id === meId && <span className="tone-subtle">you</span>}
      </span>
      {error !== null && <ErrorNote error={error} />}
      {mayManage ? (
        <select
          className="ui-select projects-role"
          aria-label={`Role of ${member.username}`}
          disabled={busy}
          value={member.role}
          onChange={(event) => {
            const role = event.target.value === "writer" ? "writer" : "reader";
            void change(() => api.PUT("/api/v1/projects/{project_id}/members/{user_id}", { path, body: { role } }));
          }}
        >
          <option value="reader">Reads</option>
          <option value="writer">Adds chats</option>
        </select>
      ) : (
        <span className="tone-muted">{{ owner: "Owner", writer: "Adds chats", reader: "Reads" }[member.role]}</span>
      )}
      {mayManage && (
        <Button
          size="xs"
          busy={busy}
          aria-label={`Remove ${member.username}`}
          onClick={() => void change(() => api.DELETE("/api/v1/projects/{project_id}/members/{user_id}", { path }))}
        >
          Remove
        </Button>
      )}
    </li>
  );
}

function Members({ project }: { project: Project }) {
  const members = useMembers(project.id);
  const meId = useMe().data?.user.id;
  const [text, setText] = useState("");
  const wanted = useDeferredValue(text.trim());
  const { busy, error, change } = useChange();
  const found = useQuery({
    queryKey: queryKeys.directory(wanted),
    queryFn: ({ signal }) => api.GET("/api/v1/directory", { query: { q: wanted, limit: 8 }, signal }),
    enabled: wanted !== "" && project.role === "owner",
  });
  const known = new Set((members.data ?? []).map((member) => member.id));
  const addable = (found.data?.users ?? []).filter((user) => !known.has(user.id));
  const add = async (userId: string) => {
    const path = { ...ofProject(project), user_id: userId };
    if (await change(() => api.PUT("/api/v1/projects/{project_id}/members/{user_id}", { path, body: { role: "reader" } }))) setText("");
  };
  return (
    <section className="projects-part" aria-label="Members">
      <h2>Members</h2>
      <p className="tone-muted">All members read all chats of the project. Those who add chats also change its instructions and files.</p>
      <ul className="app-readers" aria-label="Members">
        {members.data?.map((member) => (
          <MemberRow key={member.id} project={project} member={member} meId={meId} />
        ))}
      </ul>
      {project.role === "owner" && (
        <>
          <TextField label="Add a person" placeholder="Name" value={text} onChange={(event) => setText(event.target.value)} />
          {wanted !== "" && found.isSuccess && (
            <ul className="app-readers" aria-label="Found">
              {addable.length === 0 && <li className="tone-muted">Nobody of that name, or already a member.</li>}
              {addable.map((user) => (
                <li key={user.id}>
                  <span className="ui-grow ui-ellipsis">{user.name === "" ? user.username : user.name}</span>
                  <Button size="xs" busy={busy} aria-label={`Add ${user.username}`} onClick={() => void add(user.id)}>
                    Add
                  </Button>
                </li>
              ))}
            </ul>
          )}
        </>
      )}
      {(error ?? members.error ?? found.error) !== null && <ErrorNote error={error ?? members.error ?? found.error} />}
    </section>
  );
}

function Defaults({ project, mayEdit }: { project: Project; mayEdit: boolean }) {
  const models = useModels().data ?? [];
  const templates = useQuery({
    queryKey: queryKeys.settings("project-templates"),
    queryFn: async ({ signal }) => (await api.GET("/api/v1/templates", { query: { limit: 200 }, signal })).items,
  });
  const { busy, error, change } = useChange();
  const set = (body: { model_config_id?: string | null; template_id?: string | null }) =>
    void change(() => api.PATCH("/api/v1/projects/{project_id}", { path: ofProject(project), body }));
  const orNull = (value: string): string | null => (value === "" ? null : value);
  return (
    <section className="projects-part" aria-label="Defaults">
      <h2>Defaults</h2>
      <Field label="Model of new chats">
        {(names) => (
          <select
            {...names}
            className="ui-select"
            disabled={!mayEdit || busy}
            value={project.model_config_id ?? ""}
            onChange={(event) => set({ model_config_id: orNull(event.target.value) })}
          >
            <option value="">As the server says</option>
            {models.map((model) => (
              <option key={model.id} value={model.id}>
                {model.display_name === "" ? model.name : model.display_name}
              </option>
            ))}
          </select>
        )}
      </Field>
      <Field label="Template of workspaces">
        {(names) => (
          <select
            {...names}
            className="ui-select"
            disabled={!mayEdit || busy}
            value={project.template_id ?? ""}
            onChange={(event) => set({ template_id: orNull(event.target.value) })}
          >
            <option value="">The model chooses</option>
            {templates.data?.map((template) => (
              <option key={template.id} value={template.id}>
                {template.display_name === "" ? template.name : template.display_name}
              </option>
            ))}
          </select>
        )}
      </Field>
      {error !== null && <ErrorNote error={error} />}
    </section>
  );
}

function Chats({ project }: { project: Project }) {
  const filters = useMemo(() => ({ project_id: project.id, source: "all" as const }), [project.id]);
  const list = useChatList(filters);
  if (list.isLoading) return <Skeleton rows={4} label="Loading chats" />;
  if (list.error !== null) return <ErrorNote error={list.error} />;
  if (list.chats.length === 0) return <EmptyState icon={Folder}>No chats yet. Start one here, or move one in by its menu.</EmptyState>;
  return (
    <>
      <ul className="app-hits">
        {list.chats.map((chat) => (
          <li key={chat.id}>
            <Link className="app-hit" href={chatPath(chat.id)}>
              <StatusIcon status={shownStatus(chat)} />
              <span className="ui-strong ui-ellipsis">{chat.title}</span>
              <Time at={chat.updated_at} />
              {chat.is_owner === false && <p className="tone-muted">By {chat.owner_username}</p>}
            </Link>
          </li>
        ))}
      </ul>
      {list.hasMore && (
        <Button onClick={list.loadMore} busy={list.isLoadingMore}>
          More
        </Button>
      )}
    </>
  );
}

function Ending({ project }: { project: Project }) {
  const [, navigate] = useLocation();
  const meId = useMe().data?.user.id;
  const refresh = useRefreshProjects();
  const [isAsking, setAsking] = useState(false);
  const isOwner = project.role === "owner";
  const end = async () => {
    if (isOwner) await api.DELETE("/api/v1/projects/{project_id}", { path: ofProject(project) });
    else await api.DELETE("/api/v1/projects/{project_id}/members/{user_id}", { path: { ...ofProject(project), user_id: meId ?? "" } });
    navigate(PROJECTS_PATH);
    refresh();
  };
  return (
    <section className="projects-part" aria-label="End">
      <div className="projects-actions">
        <Button variant="danger" onClick={() => setAsking(true)}>
          {isOwner ? "Delete project" : "Leave project"}
        </Button>
      </div>
      {isAsking && (
        <ConfirmDialog
          open
          onOpenChange={setAsking}
          title={isOwner ? `Delete ${project.name}?` : `Leave ${project.name}?`}
          description={
            isOwner
              ? `Its ${plural(project.chat_count, "chat")} stay with their owners, without a project, and are not told its instructions any more.`
              : "You do not read its chats any more. Your own chats and files leave it with you."
          }
          action={isOwner ? "Delete" : "Leave"}
          onConfirm={end}
        />
      )}
    </section>
  );
}

export function ProjectPage({ id }: { id: string }) {
  const { data: project, error } = useProject(id);
  const mayEdit = project !== undefined && project.role !== "reader";
  return (
    <>
      <header className="app-bar">
        <SidebarButton />
        <h1 className="ui-grow ui-ellipsis">{project?.name ?? "Project"}</h1>
        {mayEdit && (
          <Link className="ui-button is-primary" href={`${NEW_CHAT_PATH}?project=${id}`}>
            <Icon of={MessageSquarePlus} />
            New chat here
          </Link>
        )}
      </header>
      <div className="app-search-page">
        {error !== null && <ErrorNote error={error} />}
        {project === undefined && error === null && <Skeleton rows={6} label="Loading the project" />}
        {project !== undefined && (
          <>
            <section className="projects-part" aria-label="Chats">
              <h2>Chats</h2>
              <Chats project={project} />
            </section>
            <Texts key={project.id} project={project} mayEdit={mayEdit} />
            <Files project={project} mayEdit={mayEdit} />
            <Members project={project} />
            <Defaults project={project} mayEdit={mayEdit} />
            <Ending project={project} />
          </>
        )}
      </div>
    </>
  );
}

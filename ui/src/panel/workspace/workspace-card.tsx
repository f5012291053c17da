import { Play, Square, Trash2 } from "lucide-react";
import { type ReactNode, useState } from "react";
import { api } from "@/api/client";
import { Button, ConfirmDialog, ErrorNote, Skeleton, StatusIcon, useNow } from "@/components";
import { Builds } from "./builds";
import { deadlineText, factsOf, stateOf, type Workspace } from "./state";
import { useBuilds, useRefreshWorkspace, useTemplateName, useWorkspace } from "./use-workspace";

interface WorkspaceCardProps {
  readonly workspaceId: string;
  readonly canChange: boolean;
  /** Choose another or none. */
  readonly chooser: ReactNode;
}

export function WorkspaceCard({ workspaceId, canChange, chooser }: WorkspaceCardProps) {
  const query = useWorkspace(workspaceId);
  if (query.data === undefined) {
    if (query.error === null) return <Skeleton rows={4} />;
    return <ErrorNote error={query.error} action={chooser ?? <Button size="xs" onClick={() => void query.refetch()}>Try again</Button>} />;
  }
  return <Loaded workspace={query.data} canChange={canChange} chooser={chooser} />;
}

function Loaded({ workspace, canChange, chooser }: { workspace: Workspace; canChange: boolean; chooser: ReactNode }) {
  const refresh = useRefreshWorkspace(workspace.id);
  const builds = useBuilds(workspace);
  const template = useTemplateName(workspace.template_id);
  const state = stateOf(workspace);
  return (
    <>
      <section className="workspace-card" aria-label="Workspace">
        <header>
          <span className="ui-strong ui-ellipsis ui-grow">{workspace.name}</span>
          <span className="ui-tag">
            <StatusIcon status={state.status} decorative />
            {state.word}
          </span>
        </header>
        <dl className="workspace-facts">
          {factsOf(workspace, template).map(([name, value]) => (
            <div key={name}>
              <dt>{name}</dt>
              <dd>{value}</dd>
            </div>
          ))}
          {workspace.deadline != null && state.canStop && <Deadline at={workspace.deadline} />}
        </dl>
        {canChange && <Actions workspace={workspace} chooser={chooser} onChanged={refresh} />}
      </section>
      <h3 className="panel-heading">Builds</h3>
      {builds.length === 0 ? <p className="tone-muted">No build yet.</p> : <Builds builds={builds} onChanged={refresh} />}
    </>
  );
}

function Deadline({ at }: { at: string }) {
  const now = useNow("minute");
  return (
    <div>
      <dt>Stops</dt>
      <dd>{deadlineText(at, now)}</dd>
    </div>
  );
}

function Actions({ workspace, chooser, onChanged }: { workspace: Workspace; chooser: ReactNode; onChanged: () => void }) {
  const state = stateOf(workspace);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const [isDeleting, setDeleting] = useState(false);
  const run = async (act: () => Promise<unknown>) => {
    setBusy(true);
    setError(null);
    try {
      await act();
    } catch (caught) {
      setError(caught);
    } finally {
      setBusy(false);
      onChanged();
    }
  };
  const path = { workspace_id: workspace.id };
  const build = (transition: "start" | "stop") => void run(() => api.POST("/api/v1/workspaces/{workspace_id}/builds", { path, body: { transition } }));
  const latest = workspace.latest_build;
  return (
    <>
      {error !== null && <ErrorNote error={error} />}
      <footer>
        {state.canStart && <Button size="sm" icon={Play} busy={busy} onClick={() => build("start")}>Start</Button>}
        {state.canStop && <Button size="sm" icon={Square} busy={busy} onClick={() => build("stop")}>Stop</Button>}
        {state.isBusy && latest !== null && (
          <Button size="sm" busy={busy} onClick={() => void run(() => api.POST("/api/v1/builds/{build_id}/cancel", { path: { build_id: latest.id } }))}>
            Cancel the build
          </Button>
        )}
        {chooser}
        <span className="ui-grow" />
        {!workspace.deleted && !state.isBusy && (
          <Button size="sm" variant="quiet" icon={Trash2} onClick={() => setDeleting(true)}>
            Delete
          </Button>
        )}
      </footer>
      <ConfirmDialog
        open={isDeleting}
        onOpenChange={setDeleting}
        title={`Delete ${workspace.name}?`}
        description="All its files are deleted, also for other chats that use it. This cannot be undone."
        action="Delete"
        onConfirm={async () => {
          await api.DELETE("/api/v1/workspaces/{workspace_id}", { path });
          onChanged();
        }}
      />
    </>
  );
}

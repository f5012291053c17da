import { useQuery, useQueryClient, type UseQueryResult } from "@tanstack/react-query";
import { ChevronRight, Play, Square, Trash2 } from "lucide-react";
import { type ReactNode, useCallback, useEffect, useRef, useState } from "react";
import { api, type ApiError } from "@/api/client";
import { queryKeys } from "@/api/queries";
import { Button, classes, ConfirmDialog, ErrorNote, Icon, Skeleton, StatusIcon, Time, useNow } from "@/components";
import { durationText } from "@/platform/words";
import { useBuildLog } from "./build-log";
import { type Build, buildMs, buildText, deadlineText, factsOf, isActive, stateOf, type Workspace } from "./state";

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
    return (
      <ErrorNote
        error={query.error}
        action={
          chooser ?? (
            <Button size="xs" onClick={() => void query.refetch()}>
              Try again
            </Button>
          )
        }
      />
    );
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
        {state.canStart && (
          <Button size="sm" icon={Play} busy={busy} onClick={() => build("start")}>
            Start
          </Button>
        )}
        {state.canStop && (
          <Button size="sm" icon={Square} busy={busy} onClick={() => build("stop")}>
            Stop
          </Button>
        )}
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

const STATUS = { succeeded: "done", failed: "error", canceled: "stopped", canceling: "interrupting", pending: "pending", running: "running" } as const;

/** The builds of a workspace, newest first; the newest is open while it runs or if it failed. */
function Builds({ builds, onChanged }: { builds: readonly Build[]; onChanged: () => void }) {
  return (
    <div className="workspace-builds">
      {builds.map((build, index) => (
        <BuildRow key={build.id} build={build} startsOpen={index === 0 && (isActive(build) || build.status === "failed")} onChanged={onChanged} />
      ))}
    </div>
  );
}

function BuildRow({ build, startsOpen, onChanged }: { build: Build; startsOpen: boolean; onChanged: () => void }) {
  const [chosen, setChosen] = useState<boolean | null>(null);
  const isOpen = chosen ?? startsOpen;
  const took = buildMs(build);
  return (
    <section className="workspace-build" aria-label={`Build ${build.build_number}`}>
      <button type="button" aria-expanded={isOpen} onClick={() => setChosen(!isOpen)}>
        <StatusIcon status={STATUS[build.status]} size="sm" decorative />
        <b>{buildText(build)}</b>
        <span className="ui-ellipsis tone-subtle">
          Build {build.build_number}, <Time at={build.created_at} />
        </span>
        <span className="ui-number">{took === null ? "" : durationText(took)}</span>
        <Icon of={ChevronRight} size="sm" className={classes("ui-chevron", isOpen && "is-open")} />
      </button>
      {isOpen && (
        <>
          {(build.error ?? "") !== "" && <p className="tone-danger">{build.error}</p>}
          <BuildLogView build={build} onChanged={onChanged} />
        </>
      )}
    </section>
  );
}

function BuildLogView({ build, onChanged }: { build: Build; onChanged: () => void }) {
  const wasActive = useRef(isActive(build));
  const ended = useCallback(() => {
    if (wasActive.current) onChanged();
  }, [onChanged]);
  const log = useBuildLog(build.id, ended);
  const box = useRef<HTMLPreElement>(null);
  const count = log.lines.length + log.dropped;
  useEffect(() => {
    if (wasActive.current) box.current?.scrollTo({ top: box.current.scrollHeight });
  }, [count]);
  if (log.error !== null) return <ErrorNote error={log.error} />;
  if (log.lines.length === 0) return log.isFollowing ? <Skeleton rows={2} /> : <p className="tone-subtle">The log is empty.</p>;
  const start = Date.parse(build.started_at ?? build.created_at);
  return (
    <pre className="tool-output" tabIndex={0} aria-label={`Log of build ${build.build_number}`} ref={box}>
      {log.dropped > 0 && (
        <span className="tone-subtle">
          {log.dropped.toLocaleString("en")} earlier lines are not shown{"\n"}
        </span>
      )}
      {log.lines.map((line) => (
        <span
          key={line.id}
          className={line.level === "error" ? "tone-danger" : line.level === "warning" ? "tone-warn" : line.level === "debug" ? "tone-subtle" : undefined}
        >
          <span className="tone-subtle">{(Math.max(0, Date.parse(line.created_at) - start) / 1000).toFixed(1).padStart(5, "0")}</span>{" "}
          {line.output.replace(/\n$/, "")}
          {"\n"}
        </span>
      ))}
    </pre>
  );
}

const BUSY_MS = 1500;
const IDLE_MS = 30_000;
const SHOWN_BUILDS = 10;

function useWorkspace(id: string): UseQueryResult<Workspace, ApiError> {
  return useQuery<Workspace, ApiError>({
    queryKey: queryKeys.workspace(id),
    queryFn: ({ signal }) => api.GET("/api/v1/workspaces/{workspace_id}", { path: { workspace_id: id }, signal }),
    refetchInterval: (found) => (isActive(found.state.data?.latest_build ?? null) ? BUSY_MS : IDLE_MS),
    staleTime: 0,
  });
}

/** The last builds; read again when the latest one changes. */
function useBuilds(workspace: Workspace): readonly Build[] {
  const latest = workspace.latest_build;
  const query = useQuery({
    queryKey: queryKeys.workspace(workspace.id, "builds", latest?.id, latest?.status),
    queryFn: ({ signal }) =>
      api.GET("/api/v1/workspaces/{workspace_id}/builds", { path: { workspace_id: workspace.id }, query: { limit: SHOWN_BUILDS }, signal }),
    placeholderData: (before) => before,
  });
  return query.data?.items ?? (latest === null ? [] : [latest]);
}

function useTemplateName(templateId: string): string | null {
  const query = useQuery({
    queryKey: queryKeys.template(templateId),
    queryFn: ({ signal }) => api.GET("/api/v1/templates/{template_id}", { path: { template_id: templateId }, signal }),
    staleTime: Infinity,
  });
  return query.data === undefined ? null : query.data.display_name || query.data.name;
}

function useRefreshWorkspace(id: string): () => void {
  const client = useQueryClient();
  return useCallback(() => void client.invalidateQueries({ queryKey: queryKeys.workspace(id) }), [client, id]);
}

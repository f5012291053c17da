/** The ports of the chat's workspace, each a site of its own: in a frame here, or in a tab of the browser. */
import "@/styles/preview.css";
import { useQuery } from "@tanstack/react-query";
import { Container, ExternalLink, MonitorOff, RefreshCw } from "lucide-react";
import { type SubmitEvent, useState } from "react";
import { api, ApiError } from "@/api/client";
import { queryKeys } from "@/api/queries";
import { Button, classes, EmptyState, ErrorNote, errorWords, IconButton, Skeleton } from "@/components";
import { useChatDetails } from "@/connection";
import { openPanel } from "@/platform/actions";
import { toast } from "@/platform/toasts";

const POLL_MS = 4000;
const MAX_PORT = 65_535;

export function PreviewTab({ chatId }: { readonly chatId: string }) {
  const details = useChatDetails(chatId);
  const chat = details.data;
  if (chat === undefined)
    return <div className="panel-scroll is-top">{details.error === null ? <Skeleton rows={4} /> : <ErrorNote error={details.error} />}</div>;
  if (chat.is_owner === false)
    return (
      <EmptyState icon={MonitorOff} title="Previews are not shared">
        Only the owner of this chat opens the ports of its workspace.
      </EmptyState>
    );
  if (chat.workspace_id == null)
    return (
      <EmptyState icon={Container} title="No workspace yet">
        This chat has no workspace yet. It gets one when the agent first works with files.
      </EmptyState>
    );
  return <Previews key={chat.workspace_id} workspaceId={chat.workspace_id} />;
}

interface Shown {
  readonly port: number;
  /** A link that opens the preview once: another one loads the frame again. */
  readonly url: string;
  readonly origin: string;
}

function Previews({ workspaceId }: { readonly workspaceId: string }) {
  const list = useQuery({
    queryKey: queryKeys.workspace(workspaceId, "ports"),
    queryFn: ({ signal }) => api.GET("/api/v1/workspaces/{workspace_id}/ports", { path: { workspace_id: workspaceId }, query: { limit: 100 }, signal }),
    refetchInterval: POLL_MS,
    staleTime: 0,
    retry: false,
  });
  const [shown, setShown] = useState<Shown | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [path, setPath] = useState("/");
  const ports = list.data?.items ?? [];

  const link = (port: number, start: string) =>
    api.POST("/api/v1/workspaces/{workspace_id}/previews", { path: { workspace_id: workspaceId }, body: { port, path: start } });
  const show = async (port: number, start: string) => {
    setError(null);
    try {
      const made = await link(port, start);
      setShown({ port, url: made.url, origin: made.origin });
    } catch (caught) {
      setError(caught);
    }
  };
  const openTab = async (port: number) => {
    try {
      const made = await link(port, path);
      const anchor = document.createElement("a");
      anchor.href = made.url;
      anchor.target = "_blank";
      anchor.rel = "noreferrer";
      anchor.click();
    } catch (caught) {
      toast({ text: errorWords(caught).text, tone: "danger" });
    }
  };
  const go = (event: SubmitEvent<HTMLFormElement>) => {
    event.preventDefault();
    const data = new FormData(event.currentTarget);
    const port = Number(data.get("port"));
    const asked = data.get("path");
    const start = typeof asked === "string" && asked.startsWith("/") ? asked : "/";
    setPath(start);
    if (Number.isInteger(port) && port >= 1 && port <= MAX_PORT) void show(port, start);
    else toast(`A port is a number from 1 to ${MAX_PORT}.`);
  };

  if (list.error !== null && list.data === undefined) return <NoPorts error={list.error} onRetry={() => void list.refetch()} />;
  return (
    <div className="preview-tab">
      <div className="panel-bar preview-ports" role="group" aria-label="Ports">
        {ports.map((one) => (
          <button
            key={one.port}
            type="button"
            className={classes("preview-port", one.port === shown?.port && "is-on")}
            aria-pressed={one.port === shown?.port}
            title={one.command === "" ? undefined : one.command}
            onClick={() => void show(one.port, path)}
          >
            {one.port}
            <span>{programOf(one.command ?? "")}</span>
          </button>
        ))}
        {ports.length === 0 && <span className="tone-muted">{list.isPending ? "Looking for ports" : "No program listens on a port."}</span>}
      </div>
      <form className="panel-bar preview-address" onSubmit={go} key={shown?.port ?? 0}>
        <label className="ui-field preview-number">
          <span>Port</span>
          <input name="port" inputMode="numeric" aria-label="Port" defaultValue={shown?.port ?? ports[0]?.port ?? ""} placeholder="3000" />
        </label>
        <label className="ui-field ui-grow">
          <input name="path" aria-label="Path" defaultValue={path} placeholder="/" />
        </label>
        <Button type="submit" size="sm">
          Show
        </Button>
        {shown !== null && (
          <>
            <IconButton icon={RefreshCw} label="Load the preview again" onClick={() => void show(shown.port, path)} />
            <IconButton icon={ExternalLink} label="Open in a tab" onClick={() => void openTab(shown.port)} />
          </>
        )}
      </form>
      {error !== null && (
        <div className="panel-scroll is-top">
          <ErrorNote error={error} />
        </div>
      )}
      {shown === null && error === null && (
        <EmptyState icon={MonitorOff} title="No preview is open">
          Choose a port above. Programs that are started in the workspace appear by themselves.
        </EmptyState>
      )}
      {shown !== null && error === null && (
        // Another origin than the page: it may be "same-origin" with itself. It cannot leave the frame.
        <iframe
          key={shown.url}
          className="preview-frame"
          title={`Preview of port ${shown.port}`}
          src={shown.url}
          sandbox="allow-scripts allow-same-origin allow-forms allow-modals allow-popups allow-popups-to-escape-sandbox allow-downloads"
          referrerPolicy="no-referrer"
        />
      )}
    </div>
  );
}

/** The program of a command, without its directories: "node" of "/usr/bin/node server.js". */
export function programOf(command: string): string {
  const word = command.trim().split(/\s+/)[0] ?? "";
  return word.slice(word.lastIndexOf("/") + 1);
}

function NoPorts({ error, onRetry }: { readonly error: unknown; readonly onRetry: () => void }) {
  const code = error instanceof ApiError ? error.code : "";
  return (
    <EmptyState
      icon={Container}
      title={code === "no_agent" ? "The workspace does not run" : "The workspace does not answer"}
      actions={
        <>
          <Button onClick={onRetry}>Try again</Button>
          <Button variant="quiet" onClick={() => openPanel("workspace")}>
            Open workspace
          </Button>
        </>
      }
    >
      {errorWords(error).text}
    </EmptyState>
  );
}

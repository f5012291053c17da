/** The ports of the chat's workspace, each a site of its own: in a frame here, or in a tab of the browser. Readers of a chat see those that its owner shares. */
import "@/styles/preview.css";
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { ExternalLink, MonitorOff, RefreshCw } from "lucide-react";
import { type SubmitEvent, useState } from "react";
import { api } from "@/api/client";
import { queryKeys } from "@/api/queries";
import { Button, classes, EmptyState, ErrorNote, errorWords, IconButton, Switch } from "@/components";
import { toast } from "@/platform/toasts";
import { NoAnswer, Unread, WorkspaceFrame } from "../workspace/workspace-frame";

const POLL_MS = 4000;
const MAX_PORT = 65_535;

export function PreviewTab({ chatId }: { readonly chatId: string }) {
  return (
    <WorkspaceFrame chatId={chatId} reader={<ReaderPreviews chatId={chatId} />}>
      {(workspaceId, chat) => <OwnerPreviews key={workspaceId} chatId={chatId} workspaceId={workspaceId} isRoot={chat.parent_chat_id == null} />}
    </WorkspaceFrame>
  );
}

function useShared(chatId: string) {
  return useQuery({
    queryKey: queryKeys.sharedPreviews(chatId),
    queryFn: ({ signal }) => api.GET("/api/v1/chats/{chat_id}/previews", { path: { chat_id: chatId }, signal }),
    refetchInterval: POLL_MS,
    staleTime: 0,
    retry: false,
  });
}

function ReaderPreviews({ chatId }: { readonly chatId: string }) {
  const shared = useShared(chatId);
  const found = shared.data;
  if (found === undefined) return <Unread error={shared.error} />;
  if (found.workspace_id == null || found.ports.length === 0)
    return (
      <EmptyState icon={MonitorOff} title="No preview is shared">
        The owner of this chat lets its readers see none of its workspace&apos;s ports now.
      </EmptyState>
    );
  return <Previews key={found.workspace_id} workspaceId={found.workspace_id} ports={found.ports.map((port) => ({ port }))} emptyText="" />;
}

function OwnerPreviews({ chatId, workspaceId, isRoot }: { readonly chatId: string; readonly workspaceId: string; readonly isRoot: boolean }) {
  const client = useQueryClient();
  const shared = useShared(chatId);
  const list = useQuery({
    queryKey: queryKeys.workspace(workspaceId, "ports"),
    queryFn: ({ signal }) => api.GET("/api/v1/workspaces/{workspace_id}/ports", { path: { workspace_id: workspaceId }, query: { limit: 100 }, signal }),
    refetchInterval: POLL_MS,
    staleTime: 0,
    retry: false,
  });
  if (list.error !== null && list.data === undefined) return <NoAnswer error={list.error} onRetry={() => void list.refetch()} />;
  const share = async (port: number, isShared: boolean) => {
    try {
      const body = { port, shared: isShared };
      client.setQueryData(queryKeys.sharedPreviews(chatId), await api.PATCH("/api/v1/chats/{chat_id}/previews", { path: { chat_id: chatId }, body }));
    } catch (caught) {
      toast({ text: errorWords(caught).text, tone: "danger" });
    }
  };
  const sharing = isRoot ? { ports: shared.data?.ports ?? [], onChange: share } : undefined;
  const emptyText = list.isPending ? "Looking for ports" : "No program listens on a port.";
  return <Previews workspaceId={workspaceId} ports={list.data?.items ?? []} emptyText={emptyText} sharing={sharing} />;
}

interface Shown {
  readonly port: number;
  /** A link that opens the preview once: another one loads the frame again. */
  readonly url: string;
  readonly origin: string;
}

interface PreviewsProps {
  readonly workspaceId: string;
  readonly ports: readonly { readonly port: number; readonly command?: string }[];
  readonly emptyText: string;
  /** The ports that readers see, and how the owner changes that. */
  readonly sharing?: { readonly ports: readonly number[]; readonly onChange: (port: number, isShared: boolean) => Promise<void> } | undefined;
}

function Previews({ workspaceId, ports, emptyText, sharing }: PreviewsProps) {
  const [shown, setShown] = useState<Shown | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [path, setPath] = useState("/");

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
        {ports.length === 0 && <span className="tone-muted">{emptyText}</span>}
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
      {shown !== null && sharing !== undefined && (
        <div className="panel-bar preview-share">
          <Switch label="Readers see it" checked={sharing.ports.includes(shown.port)} onChange={(isShared) => void sharing.onChange(shown.port, isShared)} />
          <span className="tone-muted">Readers of this chat see port {shown.port}</span>
        </div>
      )}
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

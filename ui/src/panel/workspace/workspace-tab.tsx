/** Where the tools of a chat act. */
import "@/styles/workspace.css";
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Ban, Container, FileText, KeyRound, Plug, RefreshCw, Unlink } from "lucide-react";
import { useEffect, useState } from "react";
import { api } from "@/api/client";
import { queryKeys } from "@/api/queries";
import { Button, EmptyState, ErrorNote, errorWords, Icon, Menu, MenuItem, MenuSeparator, Skeleton, Tag, Time } from "@/components";
import { type ChatReply, useChatDetails, useChatSelector } from "@/connection";
import { toast } from "@/platform/toasts";
import { plural } from "@/platform/words";
import { bytesText, stateOf } from "./state";
import { WorkspaceCard } from "./workspace-card";

export function WorkspaceTab({ chatId }: { chatId: string }) {
  const client = useQueryClient();
  const details = useChatDetails(chatId);
  const version = useChatSelector(chatId, (state) => state.version);
  const { refetch } = details;
  useEffect(() => void refetch(), [version, refetch]);
  const chat = details.data;
  if (chat === undefined) {
    return (
      <div className="panel-scroll is-top">
        {details.error === null ? (
          <Skeleton rows={4} />
        ) : (
          <ErrorNote
            error={details.error}
            action={
              <Button size="xs" onClick={() => void refetch()}>
                Try again
              </Button>
            }
          />
        )}
      </div>
    );
  }
  const canChange = chat.is_owner !== false;
  const workspaceId = chat.workspace_id ?? null;
  const chooser = canChange ? <Chooser chatId={chatId} current={workspaceId} onChanged={() => void refetch()} /> : null;
  return (
    <div className="panel-scroll is-top" tabIndex={0} role="region" aria-label="Workspace">
      {workspaceId === null ? (
        <EmptyState icon={Container} actions={chooser}>
          This chat has no workspace. It makes one when a tool needs it.
        </EmptyState>
      ) : (
        <>
          <WorkspaceCard key={workspaceId} workspaceId={workspaceId} canChange={canChange} chooser={chooser} />
          <WorkspaceNetwork workspaceId={workspaceId} />
          <Instructions chat={chat} canChange={canChange} onPinned={(pinned) => client.setQueryData(queryKeys.chat(chatId), pinned)} />
          <WorkspaceMcpServers chat={chat} />
        </>
      )}
    </div>
  );
}

const MAX_LISTED = 30;

interface ChooserProps {
  readonly chatId: string;
  readonly current: string | null;
  readonly onChanged: () => void;
}

/** Gives the chat another workspace of its owner, or none. */
function Chooser({ chatId, current, onChanged }: ChooserProps) {
  const [isOpen, setOpen] = useState(false);
  const list = useQuery({
    queryKey: queryKeys.workspaces,
    queryFn: ({ signal }) => api.GET("/api/v1/workspaces", { query: { limit: MAX_LISTED }, signal }),
    enabled: isOpen,
    staleTime: 0,
  });
  const choose = async (workspaceId: string | null) => {
    try {
      await api.PATCH("/api/v1/chats/{chat_id}", { path: { chat_id: chatId }, body: { workspace_id: workspaceId } });
      onChanged();
    } catch (error) {
      toast({ text: errorWords(error).text, tone: "danger" });
    }
  };
  const others = (list.data?.items ?? []).filter((workspace) => workspace.id !== current && !workspace.deleted);
  return (
    <Menu
      label="Workspace of this chat"
      align="start"
      open={isOpen}
      onOpenChange={setOpen}
      trigger={<Button size="sm">{current === null ? "Choose a workspace" : "Change"}</Button>}
    >
      {others.map((workspace) => (
        <MenuItem key={workspace.id} icon={Container} hint={stateOf(workspace).word} onSelect={() => void choose(workspace.id)}>
          {workspace.name}
        </MenuItem>
      ))}
      {others.length === 0 && (
        <MenuItem disabled hint={list.isPending ? undefined : "Chats make their own when a tool needs one"}>
          {list.isPending ? "Loading" : "No other workspace"}
        </MenuItem>
      )}
      {current !== null && (
        <>
          <MenuSeparator />
          <MenuItem icon={Unlink} hint="Its files stay. The chat makes a new one when it needs it" onSelect={() => void choose(null)}>
            Detach
          </MenuItem>
        </>
      )}
    </Menu>
  );
}

const MAX_SHOWN = 50;

interface InstructionsProps {
  readonly chat: ChatReply;
  readonly canChange: boolean;
  readonly onPinned: (chat: ChatReply) => void;
}

/** The instruction files that the model has, as they were pinned. */
function Instructions({ chat, canChange, onPinned }: InstructionsProps) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const context = chat.context ?? null;
  const pin = async () => {
    setBusy(true);
    setError(null);
    try {
      onPinned(await api.PUT("/api/v1/chats/{chat_id}/context", { path: { chat_id: chat.id } }));
    } catch (caught) {
      setError(caught);
    } finally {
      setBusy(false);
    }
  };
  return (
    <>
      <h3 className="panel-heading">
        Instructions
        {context?.dirty === true && <Tag tone="warn">changed since</Tag>}
        <span className="ui-meta">
          {canChange && (
            <Button size="xs" variant={context?.dirty === true ? undefined : "quiet"} icon={RefreshCw} busy={busy} onClick={() => void pin()}>
              Read again
            </Button>
          )}
        </span>
      </h3>
      {error !== null && <ErrorNote error={error} />}
      {context === null ? (
        <p className="tone-muted">None are pinned. They are read when the chat first uses the workspace.</p>
      ) : (
        <>
          {context.dirty && <p className="tone-muted">Files in the workspace differ from what the model has. Read them again to use the new ones.</p>}
          {context.error !== null && <p className="tone-warn">{context.error}</p>}
          <ul className="workspace-resources">
            {context.resources.slice(0, MAX_SHOWN).map((item) => (
              <li key={`${item.kind} ${item.source}`}>
                <Icon of={FileText} size="sm" className={item.status === "ok" ? "tone-subtle" : "tone-warn"} />
                <span className="ui-ellipsis" title={item.source}>
                  {item.source === "" ? item.name : item.source}
                </span>
                <span className="tone-subtle">
                  {item.status === "ok" ? `${item.kind}, ${bytesText(item.size)}` : (item.error ?? "") === "" ? item.status : item.error}
                </span>
              </li>
            ))}
          </ul>
          {context.resources.length === 0 && <p className="tone-muted">The workspace has no instruction files, such as AGENTS.md.</p>}
          <p className="tone-subtle">
            Pinned <Time at={context.pinned_at} />
          </p>
        </>
      )}
    </>
  );
}

const REASONS: Readonly<Record<string, string>> = {
  not_allowed: "not allowed by the template",
  private_address: "its address is not public",
  wrong_name: "another host over its connection",
  untrusted_certificate: "a program did not trust the proxy",
  no_authority: "sent without its credential: stop and start the workspace",
};
const REFRESH_MS = 10_000;

/** What the workspace may reach, for which hosts a proxy has a credential, and what was refused. */
export function WorkspaceNetwork({ workspaceId }: { readonly workspaceId: string }) {
  const found = useQuery({
    queryKey: queryKeys.workspace(workspaceId, "network"),
    queryFn: ({ signal }) => api.GET("/api/v1/workspaces/{workspace_id}/network", { path: { workspace_id: workspaceId }, signal }),
    refetchInterval: REFRESH_MS,
  }).data;
  if (found?.mode !== "allow") return null;
  const { allow = [], credentials = [], refusals = [], refusals_unknown: unknown } = found;
  return (
    <>
      <h3 className="panel-heading">Network</h3>
      <p className="tone-muted">Reaches {allow.length === 0 ? "nothing" : allow.join(", ")}</p>
      <ul className="workspace-resources">
        {credentials.slice(0, MAX_SHOWN).map((one) => (
          <li key={`${one.scope} ${one.host}:${one.port}${one.path}`}>
            <Icon of={KeyRound} size="sm" className="tone-subtle" />
            <span className="ui-ellipsis">
              {one.host}
              {one.path === "/" ? "" : one.path}
            </span>
            <span className="tone-subtle">{one.git_only === true ? "credential for git" : "credential"}</span>
          </li>
        ))}
        {refusals.slice(0, MAX_SHOWN).map((one) => (
          <li key={`${one.host}:${one.port}`}>
            <Icon of={Ban} size="sm" className="tone-warn" label="Refused" />
            <span className="ui-ellipsis" title={`${one.host}:${one.port}`}>
              {one.host}:{one.port}
            </span>
            <span className="tone-subtle">
              {plural(one.count, "time")}, {REASONS[one.reason] ?? one.reason}, <Time at={one.last_at} />
            </span>
          </li>
        ))}
      </ul>
      {(unknown ?? "") !== "" && <p className="tone-subtle">What was refused is not known. {unknown}</p>}
    </>
  );
}

/** The MCP servers of the workspace's `.mcp.json`, and why some cannot be used. */
export function WorkspaceMcpServers({ chat }: { readonly chat: ChatReply }) {
  const servers = chat.workspace_mcp_servers ?? [];
  if (servers.length === 0) return null;
  return (
    <>
      <h3 className="panel-heading">MCP servers</h3>
      <ul className="workspace-resources">
        {servers.slice(0, MAX_SHOWN).map((server) => (
          <li key={server.name}>
            <Icon of={Plug} size="sm" className={(server.error ?? "") === "" ? "tone-subtle" : "tone-warn"} />
            <span className="ui-ellipsis" title={server.name}>
              {server.name}
            </span>
            <span className="tone-subtle">{(server.error ?? "") === "" ? plural(server.tools, "tool") : server.error}</span>
          </li>
        ))}
      </ul>
    </>
  );
}

/** What the tabs of a chat's workspace share: who may see it, whether there is one, and the notes of a connection that is not there. */
import "@/styles/panel-note.css";
import { Container } from "lucide-react";
import type { ReactNode } from "react";
import { ApiError } from "@/api/client";
import type { components } from "@/api/schema";
import { Button, Countdown, EmptyState, ErrorNote, errorWords, Skeleton } from "@/components";
import { useChatDetails } from "@/connection";
import { openPanel } from "@/platform/actions";

type Chat = components["schemas"]["ChatReply"];

interface WorkspaceFrameProps {
  readonly chatId: string;
  /** What readers of a shared chat see. */
  readonly reader: ReactNode;
  readonly children: (workspaceId: string, chat: Chat) => ReactNode;
}

export function WorkspaceFrame({ chatId, reader, children }: WorkspaceFrameProps) {
  const { data: chat, error } = useChatDetails(chatId);
  if (chat === undefined) return <Unread error={error} />;
  if (chat.is_owner === false) return reader;
  if (chat.workspace_id == null)
    return (
      <EmptyState icon={Container} title="No workspace yet">
        This chat has no workspace yet. It gets one when the agent first works with files.
      </EmptyState>
    );
  return children(chat.workspace_id, chat);
}

/** In place of what has not been read yet, or cannot be. */
export function Unread({ error }: { readonly error: unknown }) {
  return <div className="panel-scroll is-top">{error === null ? <Skeleton rows={4} /> : <ErrorNote error={error} />}</div>;
}

const TITLES: Readonly<Record<string, string>> = {
  no_agent: "The workspace does not run",
  runner_disconnected: "The machine of the workspace is not connected",
};

export function NoAnswer({ error, onRetry }: { readonly error: unknown; readonly onRetry: () => void }) {
  const code = error instanceof ApiError ? error.code : "";
  return (
    <EmptyState icon={Container} title={TITLES[code] ?? "The workspace does not answer"} actions={<RetryOrOpen onRetry={onRetry} />}>
      {errorWords(error).text}
    </EmptyState>
  );
}

function RetryOrOpen({ onRetry, size }: { readonly onRetry: () => void; readonly size?: "sm" }) {
  return (
    <>
      <Button size={size} onClick={onRetry}>
        Try again
      </Button>
      <Button size={size} variant="quiet" onClick={() => openPanel("workspace")}>
        Open workspace
      </Button>
    </>
  );
}

/** A line below a terminal or a screen. */
export function PanelNote({ children, action }: { readonly children: ReactNode; readonly action?: ReactNode }) {
  return (
    <div className="panel-note" role="status">
      <span className="ui-grow">{children}</span>
      {action}
    </div>
  );
}

export function RefusedNote({ children, onRetry }: { readonly children: ReactNode; readonly onRetry: () => void }) {
  return <PanelNote action={<RetryOrOpen onRetry={onRetry} size="sm" />}>{children}</PanelNote>;
}

export function LostNote({ children, retryAt, onRetry }: { readonly children: ReactNode; readonly retryAt: number; readonly onRetry: () => void }) {
  return (
    <PanelNote
      action={
        <Button size="sm" onClick={onRetry}>
          Now
        </Button>
      }
    >
      {children} Trying again in <Countdown until={retryAt} />.
    </PanelNote>
  );
}

/** The address of a WebSocket of the chat. */
export function chatSocketUrl(chatId: string, path: string, query: Readonly<Record<string, string>> = {}): string {
  const url = new URL(`/api/v1/chats/${encodeURIComponent(chatId)}/${path}`, location.href);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  url.search = new URLSearchParams(query).toString();
  return url.href;
}

/** Where the tools of a chat act. */
import "@/styles/workspace.css";
import { useQueryClient } from "@tanstack/react-query";
import { Container } from "lucide-react";
import { useEffect } from "react";
import { Button, EmptyState, ErrorNote, Skeleton } from "@/components";
import { CHAT_KEY, useChatDetails, useChatSelector } from "@/connection";
import { Chooser } from "./chooser";
import { Instructions } from "./instructions";
import { WorkspaceMcpServers } from "./mcp-servers";
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
        {details.error === null ? <Skeleton rows={4} /> : <ErrorNote error={details.error} action={<Button size="xs" onClick={() => void refetch()}>Try again</Button>} />}
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
          <Instructions chat={chat} canChange={canChange} onPinned={(pinned) => client.setQueryData([CHAT_KEY, chatId], pinned)} />
          <WorkspaceMcpServers chat={chat} />
        </>
      )}
    </div>
  );
}

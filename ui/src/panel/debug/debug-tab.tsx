/** The model calls of a chat, if the deployment and the user record them. */
import "@/styles/workspace.css";
import { useInfiniteQuery, useQuery, useQueryClient } from "@tanstack/react-query";
import { Bug } from "lucide-react";
import { useEffect, useState } from "react";
import { api } from "@/api/client";
import { useMe } from "@/api/queries";
import { Button, EmptyState, ErrorNote, errorWords, Skeleton } from "@/components";
import { useChatSelector } from "@/connection";
import { toast } from "@/platform/toasts";
import { CallCard } from "./call-card";

const PAGE = 30;
const SETTINGS_KEY = ["panel", "my-settings"] as const;

export function DebugTab({ chatId }: { chatId: string }) {
  const version = useChatSelector(chatId, (state) => state.version);
  const query = useInfiniteQuery({
    queryKey: ["panel", "debug", chatId],
    queryFn: ({ pageParam, signal }) =>
      api.GET("/api/v1/chats/{chat_id}/debug/runs", { path: { chat_id: chatId }, query: { limit: PAGE, cursor: pageParam ?? undefined }, signal }),
    initialPageParam: null as string | null,
    getNextPageParam: (page) => page.next_cursor,
    staleTime: 0,
  });
  const { refetch } = query;
  useEffect(() => {
    if (version > 0) void refetch();
  }, [version, refetch]);
  const calls = query.data?.pages.flatMap((page) => page.items);
  return (
    <div className="panel-scroll is-top" tabIndex={0} role="region" aria-label="Model calls">
      {calls === undefined ? (
        query.error === null ? <Skeleton rows={4} /> : <ErrorNote error={query.error} action={<Button size="xs" onClick={() => void refetch()}>Try again</Button>} />
      ) : (
        <>
          {calls.length === 0 && <NoCalls />}
          {calls.length > 0 && <p className="tone-subtle ui-lead">Model calls, newest first. All who may read the chat can read them.</p>}
          <div className="workspace-builds">
            {calls.map((call) => (
              <CallCard key={call.id} chatId={chatId} call={call} />
            ))}
          </div>
          {query.hasNextPage && (
            <Button size="sm" variant="quiet" busy={query.isFetchingNextPage} onClick={() => void query.fetchNextPage()}>
              Earlier calls
            </Button>
          )}
        </>
      )}
    </div>
  );
}

/** Says whether calls are recorded, and how to turn it on. */
function NoCalls() {
  const client = useQueryClient();
  const [busy, setBusy] = useState(false);
  const isAdmin = useMe().data?.user.role === "admin";
  const settings = useQuery({ queryKey: SETTINGS_KEY, queryFn: ({ signal }) => api.GET("/api/v1/settings/me", { signal }), staleTime: 0 });
  if (settings.data === undefined) return settings.error === null ? <Skeleton rows={2} /> : <ErrorNote error={settings.error} />;
  const turnOn = async () => {
    setBusy(true);
    try {
      await api.PATCH("/api/v1/settings/me", { body: { debug_recording: true } });
      await client.invalidateQueries({ queryKey: SETTINGS_KEY });
    } catch (error) {
      toast({ text: errorWords(error).text, tone: "danger" });
    } finally {
      setBusy(false);
    }
  };
  if (settings.data.debug_recording) return <EmptyState icon={Bug}>No model call was recorded yet. The next one of this chat will be.</EmptyState>;
  return (
    <EmptyState
      icon={Bug}
      title="Model calls are not recorded"
      actions={
        <Button size="sm" busy={busy} onClick={() => void turnOn()}>
          Record my chats
        </Button>
      }
    >
      {isAdmin ? "You allow it under Settings, Behaviour (debug recording: by users, or all)." : "An administrator allows it under Settings, Behaviour."} Each user then turns it on. Records hold the texts of the chat, without keys.
    </EmptyState>
  );
}

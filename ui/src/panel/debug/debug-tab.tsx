/** The model calls of a chat, if the deployment and the user record them. */
import "@/styles/workspace.css";
import { useInfiniteQuery, useQuery, useQueryClient } from "@tanstack/react-query";
import { Bug, ChevronRight } from "lucide-react";
import { useEffect, useState } from "react";
import { api, type ApiError } from "@/api/client";
import { queryKeys, useMe } from "@/api/queries";
import type { components } from "@/api/schema";
import { Button, classes, EmptyState, ErrorNote, errorWords, Icon, Skeleton, StatusIcon, Time } from "@/components";
import { useChatSelector } from "@/connection";
import { toast } from "@/platform/toasts";
import { durationText } from "@/platform/words";
import { JsonTree } from "./json-tree";

const PAGE = 30;

export function DebugTab({ chatId }: { chatId: string }) {
  const version = useChatSelector(chatId, (state) => state.version);
  const query = useInfiniteQuery({
    queryKey: queryKeys.debugCalls(chatId),
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
        query.error === null ? (
          <Skeleton rows={4} />
        ) : (
          <ErrorNote
            error={query.error}
            action={
              <Button size="xs" onClick={() => void refetch()}>
                Try again
              </Button>
            }
          />
        )
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
  const settings = useQuery({ queryKey: queryKeys.settings("me"), queryFn: ({ signal }) => api.GET("/api/v1/settings/me", { signal }), staleTime: 0 });
  if (settings.data === undefined) return settings.error === null ? <Skeleton rows={2} /> : <ErrorNote error={settings.error} />;
  const turnOn = async () => {
    setBusy(true);
    try {
      await api.PATCH("/api/v1/settings/me", { body: { debug_recording: true } });
      await client.invalidateQueries({ queryKey: queryKeys.settings("me") });
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
      {isAdmin ? "You allow it under Settings, Behaviour (debug recording: by users, or all)." : "An administrator allows it under Settings, Behaviour."} Each
      user then turns it on. Records hold the texts of the chat, without keys.
    </EmptyState>
  );
}

type WholeCall = components["schemas"]["DebugRunReply"];

function CallCard({ chatId, call }: { chatId: string; call: ModelCall }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <section className="workspace-build" aria-label={callTitle(call)}>
      <button type="button" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
        <StatusIcon status={callOutcome(call)} size="sm" decorative />
        <b>{callTitle(call)}</b>
        <span className="ui-ellipsis tone-subtle">
          {call.error ?? call.model}, <Time at={call.started_at} />
        </span>
        <span className="ui-number">{durationText(call.duration_ms)}</span>
        <Icon of={ChevronRight} size="sm" className={classes("ui-chevron", isOpen && "is-open")} />
      </button>
      {isOpen && (
        <>
          <dl className="workspace-facts">
            {callFacts(call).map(([name, value]) => (
              <div key={name}>
                <dt>{name}</dt>
                <dd>{value}</dd>
              </div>
            ))}
          </dl>
          {call.is_cut && <p className="tone-warn">The record is cut: the call was over its size limit.</p>}
          <Content chatId={chatId} id={call.id} />
        </>
      )}
    </section>
  );
}

function Content({ chatId, id }: { chatId: string; id: string }) {
  const query = useQuery<WholeCall, ApiError>({
    queryKey: queryKeys.debugCall(chatId, id),
    queryFn: ({ signal }) => api.GET("/api/v1/chats/{chat_id}/debug/runs/{debug_run_id}", { path: { chat_id: chatId, debug_run_id: id }, signal }),
    staleTime: Infinity,
    structuralSharing: false,
  });
  if (query.data === undefined) {
    return query.error === null ? (
      <Skeleton rows={2} />
    ) : (
      <ErrorNote
        error={query.error}
        action={
          <Button size="xs" onClick={() => void query.refetch()}>
            Try again
          </Button>
        }
      />
    );
  }
  return (
    <>
      <JsonTree label="Request" value={query.data.request} />
      <JsonTree label="Answer" value={query.data.response} />
    </>
  );
}

// What the page says about a recorded model call. Pure.

export type ModelCall = components["schemas"]["DebugRunItem"];

const KINDS: Readonly<Record<ModelCall["kind"], string>> = { turn: "Answer", title: "Title", compaction: "Summary" };

export function callTitle(call: ModelCall): string {
  return call.attempt > 1 ? `${KINDS[call.kind]}, attempt ${call.attempt}` : KINDS[call.kind];
}

export function callOutcome(call: ModelCall): "done" | "stopped" | "error" {
  if (call.error_kind === "cancelled") return "stopped";
  return call.error === null ? "done" : "error";
}

/** "3,261 in, 9 out, 1,024 cached". */
export function tokensText(usage: ModelCall["usage"]): string {
  const parts = [
    [usage.input_tokens, "in"],
    [usage.output_tokens, "out"],
    [usage.reasoning_tokens, "reasoning"],
    [usage.cache_read_tokens, "from cache"],
    [usage.cache_creation_tokens, "to cache"],
  ] as const;
  const shown = parts
    .filter(([count, word]) => (count ?? 0) > 0 || word === "in" || word === "out")
    .map(([count, word]) => `${(count ?? 0).toLocaleString("en")} ${word}`);
  return `${shown.join(", ")}${usage.estimated === true ? " (estimated)" : ""}`;
}

export function callFacts(call: ModelCall): readonly (readonly [string, string])[] {
  const facts: (readonly [string, string | null])[] = [
    ["Model", `${call.model} of ${call.provider}`],
    ["Tokens", tokensText(call.usage)],
    ["First part", call.first_part_ms === null ? "none came" : `after ${durationText(call.first_part_ms)}`],
    ["Ended by", call.finish_reason],
    ["Status", call.status_code === null ? null : String(call.status_code)],
    ["Error", call.error],
    ["Version", `${call.history_version.toLocaleString("en")}, attempt ${call.attempt}`],
  ];
  return facts.filter((fact): fact is readonly [string, string] => fact[1] !== null);
}

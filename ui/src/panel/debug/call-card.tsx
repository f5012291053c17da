import { useQuery } from "@tanstack/react-query";
import { ChevronRight } from "lucide-react";
import { useState } from "react";
import { api } from "@/api/client";
import type { ApiError } from "@/api/errors";
import type { components } from "@/api/schema";
import { Button, classes, durationText, ErrorNote, Icon, Skeleton, StatusIcon, Time } from "@/components";
import { callFacts, callOutcome, callTitle, type ModelCall } from "./call-words";
import { JsonTree } from "./json-tree";

type WholeCall = components["schemas"]["DebugRunReply"];

export function CallCard({ chatId, call }: { chatId: string; call: ModelCall }) {
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
    queryKey: ["panel", "debug", chatId, id],
    queryFn: ({ signal }) => api.GET("/api/v1/chats/{chat_id}/debug/runs/{debug_run_id}", { path: { chat_id: chatId, debug_run_id: id }, signal }),
    staleTime: Infinity,
    structuralSharing: false,
  });
  if (query.data === undefined) {
    return query.error === null ? <Skeleton rows={2} /> : <ErrorNote error={query.error} action={<Button size="xs" onClick={() => void query.refetch()}>Try again</Button>} />;
  }
  return (
    <>
      <JsonTree label="Request" value={query.data.request} />
      <JsonTree label="Answer" value={query.data.response} />
    </>
  );
}

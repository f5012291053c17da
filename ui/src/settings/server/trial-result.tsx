import { skipToken, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Check, TriangleAlert } from "lucide-react";
import { api } from "@/api/client";
import type { components } from "@/api/schema";
import { Button, ErrorNote, Icon } from "@/components";

type Trial = components["schemas"]["TrialReply"];

/** The last test of a provider: running, or its result, or why it could not be made. Null: there was none. */
export type ProviderTrial = { state: "running" } | { state: "ended"; trial: Trial } | { state: "error"; error: Error };

const keyOf = (providerId: string | undefined) => ["trial", providerId] as const;

/** The last test of a provider, wherever on the page it was started. */
export function useTrial(providerId: string | undefined): ProviderTrial | null {
  const { data } = useQuery<ProviderTrial>({ queryKey: keyOf(providerId), queryFn: skipToken, staleTime: Infinity, gcTime: Infinity });
  return data ?? null;
}

/** Tests a provider with one small call. The result outlives the part of the page that asked for it. */
export function useStartTrial(): (providerId: string) => void {
  const client = useQueryClient();
  const note = (providerId: string, trial: ProviderTrial) => client.setQueryData<ProviderTrial>(keyOf(providerId), trial);
  const { mutate } = useMutation({
    mutationFn: (id: string) => api.POST("/api/v1/providers/{provider_id}/test", { path: { provider_id: id }, body: {}, timeoutMs: 120_000 }),
    onMutate: (id) => note(id, { state: "running" }),
    onSuccess: (trial, id) => note(id, { state: "ended", trial }),
    onError: (error, id) => note(id, { state: "error", error }),
  });
  return mutate;
}

/** What the last test showed; nothing while there was none. */
export function TrialNote({ last, onNewKey }: { last: ProviderTrial | null; onNewKey?: (() => void) | undefined }) {
  if (last?.state === "error") return <div className="ui-result is-bad"><ErrorNote error={last.error} /></div>;
  if (last?.state === "ended") return <TrialResult trial={last.trial} {...(onNewKey === undefined ? {} : { onNewKey })} />;
  return null;
}

/** What a test call showed: that it works, or whose side the failure is on and what to do. */
export function TrialResult({ trial, onNewKey }: { trial: Trial; onNewKey?: () => void }) {
  if (trial.ok) {
    return (
      <div className="ui-result is-good" role="status">
        <Icon of={Check} />
        <div className="ui-grow">
          <b className="ui-strong">It works.</b> {trial.model} answered in {trial.duration_ms} ms.
        </div>
      </div>
    );
  }
  return (
    <div className="ui-result is-bad" role="alert">
      <Icon of={TriangleAlert} />
      <div className="ui-grow">
        <b className="ui-strong">{trial.explanation ?? "The test failed."}</b>
        {trial.detail && <p>{trial.detail}</p>}
        <p>Asked {trial.model || "no model"}; it took {trial.duration_ms} ms.</p>
      </div>
      {onNewKey && trial.error_kind === "auth" && <Button size="sm" onClick={onNewKey}>New key</Button>}
    </div>
  );
}

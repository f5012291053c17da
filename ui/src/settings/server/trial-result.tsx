import { Check, TriangleAlert } from "lucide-react";
import type { components } from "@/api/schema";
import { Button, Icon } from "@/components";

type Trial = components["schemas"]["TrialReply"];

/** What a test call showed: that it works, or whose side the failure is on and what to do. */
export function TrialResult({ trial, onNewKey }: { trial: Trial; onNewKey?: () => void }) {
  if (trial.ok) {
    return (
      <div className="result good" role="status">
        <Icon of={Check} />
        <div className="grow">
          <b className="b">It works.</b> {trial.model} answered in {trial.duration_ms} ms.
        </div>
      </div>
    );
  }
  return (
    <div className="result bad" role="alert">
      <Icon of={TriangleAlert} />
      <div className="grow">
        <b className="b">{trial.explanation ?? "The test failed."}</b>
        {trial.detail && <p>{trial.detail}</p>}
        <p>Asked {trial.model || "no model"}; it took {trial.duration_ms} ms.</p>
      </div>
      {onNewKey && trial.error_kind === "auth" && <Button size="sm" onClick={onNewKey}>New key</Button>}
    </div>
  );
}

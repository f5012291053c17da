/** A plan of the agent, to read and to let run. */
import { ClipboardList } from "lucide-react";
import { useEffect, useState } from "react";
import { Button, StatusIcon } from "@/components";
import { focusComposer } from "@/platform/actions";
import { Markdown } from "@/text/markdown";
import { useTimelineActions } from "../actions";
import { asObject, textOf } from "../rows/json";
import { type CardProps, Failure, ToolFrame, verbOf } from "./frame";

export function PlanCard({ call, rowKey, isLast }: CardProps) {
  const result = asObject(call.result);
  const fileId = textOf(result, "file_id");
  if (call.state === "done" && isLast) return <PlanForm fileId={fileId} />;
  return (
    <ToolFrame
      call={call}
      rowKey={rowKey}
      icon={ClipboardList}
      verb={verbOf(call, "Writing a plan", "Proposed a plan", "Plan not proposed")}
      subject={textOf(result, "path") || textOf(call.args, "path")}
      opens={call.state === "failed"}
    >
      {call.state === "failed" && <Failure text={textOf(result, "error")} />}
      {fileId !== "" && <PlanText fileId={fileId} />}
    </ToolFrame>
  );
}

function PlanForm({ fileId }: { readonly fileId: string }) {
  const { send } = useTimelineActions();
  const [isSent, setSent] = useState(false);
  return (
    <section className="ask-card" aria-label="Plan">
      <header>
        <StatusIcon status="requires_action" decorative />
        Plan is ready to read
      </header>
      <PlanText fileId={fileId} />
      <footer>
        <Button
          size="sm"
          variant="primary"
          busy={isSent}
          onClick={() => {
            setSent(true);
            send("Implement the plan.", "off");
          }}
        >
          Implement plan
        </Button>
        <Button size="sm" onClick={focusComposer}>
          Ask for changes
        </Button>
      </footer>
    </section>
  );
}

function PlanText({ fileId }: { readonly fileId: string }) {
  const { fileText } = useTimelineActions();
  const [text, setText] = useState<string | null>(null);
  const [hasFailed, setFailed] = useState(false);
  useEffect(() => {
    const stop = new AbortController();
    fileText(fileId, stop.signal).then(
      (found) => {
        if (!stop.signal.aborted) setText(found);
      },
      () => {
        if (!stop.signal.aborted) setFailed(true);
      },
    );
    return () => stop.abort();
  }, [fileText, fileId]);
  if (hasFailed) return <Failure text="The plan could not be loaded. Reload the page to try again." />;
  return (
    <div className="ask-body">
      <Markdown text={text ?? ""} className="ask-plan" />
    </div>
  );
}

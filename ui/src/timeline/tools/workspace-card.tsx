/** Workspaces: create, start and stop, with the log of the build; templates. */
import { Box, LayoutTemplate } from "lucide-react";
import { useEffect, useState } from "react";
import { useTimelineActions, type BuildLog } from "../actions";
import { isGoing } from "../rows/call-view";
import { asObject, objectsOf, textOf } from "../rows/json";
import type { ToolCall } from "../rows/tool-call";
import { type CardProps, ToolFrame } from "./frame";

const POLL_MS = 1500;
const SHOWN_LINES = 12;

export function WorkspaceCard({ call, rowKey }: CardProps) {
  const buildId = textOf(asObject(call.result), "build_id");
  return (
    <ToolFrame call={call} rowKey={rowKey} icon={Box} foot={<WorkspaceNote call={call} />}>
      {(isGoing(call.state) || buildId !== "") && <BuildOutput buildId={buildId === "" ? null : buildId} isGoing={isGoing(call.state)} />}
    </ToolFrame>
  );
}

function WorkspaceNote({ call }: { readonly call: ToolCall }) {
  const result = asObject(call.result);
  const agent = textOf(result, "agent_error");
  const scripts = textOf(result, "startup_scripts");
  const texts = [
    textOf(result, "message"),
    agent,
    scripts === "startup_scripts_failed" && "A start-up script failed.",
    scripts === "startup_scripts_timeout" && "The start-up scripts take long; they go on.",
    textOf(result, "directory"),
  ];
  const shown = texts.filter(Boolean);
  return shown.length === 0 ? <span>{isGoing(call.state) ? "This can take a few minutes." : "Its files are kept."}</span> : <span>{shown.join(" ")}</span>;
}

function BuildOutput({ buildId, isGoing }: { readonly buildId: string | null; readonly isGoing: boolean }) {
  const log = useBuildLog(buildId, isGoing);
  const [first] = log.lines;
  const start = first === undefined ? 0 : Date.parse(first.at);
  if (first === undefined) return null;
  return (
    <pre className="tool-output" tabIndex={0} aria-label="Build log">
      {log.lines.slice(-SHOWN_LINES).map((line) => (
        <span key={line.id} className={line.level === "error" ? "tone-danger" : line.level === "warning" ? "tone-warn" : undefined}>
          <span className="tone-subtle">{((Date.parse(line.at) - start) / 1000).toFixed(1).padStart(4, "0")}</span>
          {`  ${line.text}\n`}
        </span>
      ))}
    </pre>
  );
}

function useBuildLog(buildId: string | null, isGoing: boolean): BuildLog {
  const { buildLog } = useTimelineActions();
  const [log, setLog] = useState<BuildLog>({ lines: [], hasEnded: false });
  useEffect(() => {
    const stop = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const read = async () => {
      try {
        const found = await buildLog(buildId, stop.signal);
        if (stop.signal.aborted) return;
        setLog(found);
        if (found.hasEnded && !isGoing) return;
      } catch {
        // The log is an extra: the card stands without it, and the next try may have it.
      }
      if (!stop.signal.aborted && isGoing) timer = setTimeout(() => void read(), POLL_MS);
    };
    void read();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [buildLog, buildId, isGoing]);
  return log;
}

export function TemplatesCard({ call, rowKey }: CardProps) {
  const templates = objectsOf(asObject(call.result), "templates");
  return (
    <ToolFrame call={call} rowKey={rowKey} icon={LayoutTemplate}>
      {templates.length > 0 && (
        <ul className="tool-steps">
          {templates.map((template, index) => (
            <li key={index}>
              <b className="ui-strong">{textOf(template, "display_name") || textOf(template, "name")}</b>
              <span className="ui-ellipsis ui-grow">{textOf(template, "description")}</span>
            </li>
          ))}
        </ul>
      )}
    </ToolFrame>
  );
}

import { ChevronRight } from "lucide-react";
import { useCallback, useEffect, useRef, useState } from "react";
import { classes, durationText, ErrorNote, Icon, Skeleton, StatusIcon, Time } from "@/components";
import { type Build, buildMs, buildText, isActive } from "./state";
import { useBuildLog } from "./use-build-log";

const STATUS = { succeeded: "done", failed: "error", canceled: "stopped", canceling: "interrupting", pending: "pending", running: "running" } as const;

/** The builds of a workspace, newest first; the newest is open while it runs or if it failed. */
export function Builds({ builds, onChanged }: { builds: readonly Build[]; onChanged: () => void }) {
  return (
    <div className="workspace-builds">
      {builds.map((build, index) => (
        <BuildRow key={build.id} build={build} startsOpen={index === 0 && (isActive(build) || build.status === "failed")} onChanged={onChanged} />
      ))}
    </div>
  );
}

function BuildRow({ build, startsOpen, onChanged }: { build: Build; startsOpen: boolean; onChanged: () => void }) {
  const [chosen, setChosen] = useState<boolean | null>(null);
  const isOpen = chosen ?? startsOpen;
  const took = buildMs(build);
  return (
    <section className="workspace-build" aria-label={`Build ${build.build_number}`}>
      <button type="button" aria-expanded={isOpen} onClick={() => setChosen(!isOpen)}>
        <StatusIcon status={STATUS[build.status]} size="sm" decorative />
        <b>{buildText(build)}</b>
        <span className="ui-ellipsis tone-subtle">
          Build {build.build_number}, <Time at={build.created_at} />
        </span>
        <span className="ui-number">{took === null ? "" : durationText(took)}</span>
        <Icon of={ChevronRight} size="sm" className={classes("ui-chevron", isOpen && "is-open")} />
      </button>
      {isOpen && (
        <>
          {(build.error ?? "") !== "" && <p className="tone-danger">{build.error}</p>}
          <BuildLogView build={build} onChanged={onChanged} />
        </>
      )}
    </section>
  );
}

function BuildLogView({ build, onChanged }: { build: Build; onChanged: () => void }) {
  const wasActive = useRef(isActive(build));
  const ended = useCallback(() => {
    if (wasActive.current) onChanged();
  }, [onChanged]);
  const log = useBuildLog(build.id, ended);
  const box = useRef<HTMLPreElement>(null);
  const count = log.lines.length + log.dropped;
  useEffect(() => {
    if (wasActive.current) box.current?.scrollTo({ top: box.current.scrollHeight });
  }, [count]);
  if (log.error !== null) return <ErrorNote error={log.error} />;
  if (log.lines.length === 0) return log.isFollowing ? <Skeleton rows={2} /> : <p className="tone-subtle">The log is empty.</p>;
  const start = Date.parse(build.started_at ?? build.created_at);
  return (
    <pre className="tool-output" tabIndex={0} aria-label={`Log of build ${build.build_number}`} ref={box}>
      {log.dropped > 0 && <span className="tone-subtle">{log.dropped.toLocaleString("en")} earlier lines are not shown{"\n"}</span>}
      {log.lines.map((line) => (
        <span key={line.id} className={line.level === "error" ? "tone-danger" : line.level === "warning" ? "tone-warn" : line.level === "debug" ? "tone-subtle" : undefined}>
          <span className="tone-subtle">{(Math.max(0, Date.parse(line.created_at) - start) / 1000).toFixed(1).padStart(5, "0")}</span> {line.output.replace(/\n$/, "")}
          {"\n"}
        </span>
      ))}
    </pre>
  );
}

/** Facts about the chat itself. One line, at most one link. */
import { BookOpen, CircleStop, FoldVertical, Info, ShieldCheck } from "lucide-react";
import { type ReactNode, useState } from "react";
import { Icon, Spinner } from "@/components";
import { durationText, plural } from "@/platform/words";
import { fileName } from "@/text/code";
import { Markdown } from "@/text/markdown";
import { useTimelineActions } from "../actions";
import type { Mark, MarkRow, Takeover } from "../rows/row";

export function MarkLine({ row }: { readonly row: MarkRow }) {
  const { mark } = row;
  switch (mark.type) {
    case "compacted":
      return <Compacted mark={mark} />;
    case "compaction_failed":
      return (
        <Line icon={<Icon of={FoldVertical} className="tone-danger" />}>
          <b>Context not compacted.</b> {mark.reason}
        </Line>
      );
    case "takeover":
      return <TakenOver takeover={mark.takeover} />;
    case "stopped":
      return (
        <Line icon={<Icon of={CircleStop} />}>
          <b>Stopped by you{mark.isBetween ? ", before the next step" : ""}.</b> What was {mark.isBetween ? "done" : "said"} is kept.
        </Line>
      );
    case "notice":
      return <Notice mark={mark} />;
    case "context":
      return <ContextRead mark={mark} />;
  }
}

interface LineProps {
  readonly icon: ReactNode;
  readonly link?: ReactNode;
  readonly children: ReactNode;
}

function Line({ icon, link, children }: LineProps) {
  return (
    <div className="timeline-mark" role="note">
      {icon}
      <span>{children}</span>
      {link}
    </div>
  );
}

function Compacted({ mark }: { readonly mark: Extract<Mark, { type: "compacted" }> }) {
  const [isOpen, setOpen] = useState(false);
  if (mark.isLive) {
    return (
      <Line icon={<Spinner className="tone-accent" />}>
        <b>Compacting the context</b>
      </Line>
    );
  }
  const link = mark.summary !== "" && (
    <button type="button" className="ui-link" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
      {isOpen ? "Hide summary" : "Show summary"}
    </button>
  );
  return (
    <>
      <Line icon={<Icon of={FoldVertical} />} link={link}>
        <b>Context compacted</b>
        {mark.tokens !== null && `, from ${thousands(mark.tokens)} tokens`}
        {mark.kept > 0 && `; ${mark.kept === 1 ? "one message stays" : `${mark.kept} messages stay`} word for word`}
      </Line>
      {isOpen && <Markdown text={mark.summary} className="timeline-summary markdown-text" />}
    </>
  );
}

function TakenOver({ takeover }: { readonly takeover: Takeover }) {
  const { openRuns } = useTimelineActions();
  const link = (
    <button type="button" className="ui-link" onClick={() => openRuns(takeover.messageId)}>
      Why?
    </button>
  );
  return (
    <Line icon={<Icon of={ShieldCheck} className="tone-ok" />} link={link}>
      <b>Recovered on worker {takeover.worker}</b>
      {takeover.afterMs === null ? "." : ` after ${durationText(takeover.afterMs)}.`} No tool ran twice.
    </Line>
  );
}

function Notice({ mark }: { readonly mark: Extract<Mark, { type: "notice" }> }) {
  const { send } = useTimelineActions();
  const link = mark.canContinue && (
    <button type="button" className="ui-link" onClick={() => send("Continue where you stopped.")}>
      Continue
    </button>
  );
  return (
    <Line icon={<Icon of={Info} />} link={link}>
      {mark.text}
    </Line>
  );
}

function ContextRead({ mark }: { readonly mark: Extract<Mark, { type: "context" }> }) {
  const names = [...new Set(mark.files.map(fileName))];
  const skills = plural(mark.skills.length, "skill");
  const parts = [names.join(", "), mark.skills.length > 0 && skills].filter(Boolean);
  if (parts.length === 0) return null;
  return (
    <Line icon={<Icon of={BookOpen} />}>
      <b>Read for this chat:</b> {parts.join(" and ")}
    </Line>
  );
}

function thousands(count: number): string {
  return count >= 1000 ? `${Math.round(count / 1000)}k` : String(count);
}

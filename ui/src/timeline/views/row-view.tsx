/** One row of the timeline. A row that has not changed is not rendered again. */
import "@/styles/ask.css";
import { ChevronRight, CloudOff, CornerRightDown, Globe, Sparkle } from "lucide-react";
import { type ComponentType, createElement, lazy, memo, Suspense } from "react";
import { Button, Elapsed, Icon, Spinner } from "@/components";
import { durationText, plural } from "@/platform/words";
import { LongText } from "@/text/code";
import { Markdown } from "@/text/markdown";
import { useTimelineActions } from "../actions";
import { FileList, ReferenceList } from "../files";
import { type CardKind, callView } from "../rows/call-view";
import type { PendingSend, ReasoningRow, Row, SourcesRow, UserRow } from "../rows/row";
import { InterruptAgentCard, ListAgentsCard, MessageAgentCard, SpawnCard, WaitCard } from "../tools/agent-cards";
import { ApprovalCard, PlanCard, RequestedCard } from "../tools/approval-card";
import { CommandCard, ProcessListCard, ProcessSignalCard } from "../tools/command-card";
import { EditCard, ReadCard, ReadsLine, SearchCard, WriteCard } from "../tools/file-cards";
import { type CardProps, useOpen } from "../tools/frame";
import { AttachCard, GenericCard, SkillCard, WebLink, WebSearchCard } from "../tools/other-cards";
import { QuestionCard } from "../tools/question-card";
import { ActivityLine, CalloutView, NoteLine } from "./callouts";
import { MarkLine } from "./mark-line";
import { VersionControl } from "./versions";

export const RowView = memo(function RowView({ row }: { readonly row: Row }) {
  switch (row.kind) {
    case "user":
      return <UserBubble row={row} />;
    case "prose":
      return <Markdown text={row.text} isLive={row.isLive} />;
    case "reasoning":
      return <Reasoning row={row} />;
    case "tool":
      return <ToolCard call={row.call} rowKey={row.key} isLast={row.isLast} />;
    case "reads":
      return <ReadsLine row={row} />;
    case "sources":
      return <Sources row={row} />;
    case "files":
      return <FileList files={row.files} />;
    case "mark":
      return <MarkLine row={row} />;
    case "note":
      return <NoteLine row={row} />;
    case "callout":
      return <CalloutView callout={row.callout} />;
    case "activity":
      return <ActivityLine row={row} />;
  }
});

function Sources({ row }: { readonly row: SourcesRow }) {
  const [isOpen, setOpen] = useOpen(row.key, false);
  const count = row.sources.length;
  return (
    <details className="tool-quiet" open={isOpen}>
      <summary
        className="tool-line"
        onClick={(event) => {
          event.preventDefault();
          setOpen(!isOpen);
        }}
      >
        <Icon of={Globe} />
        <b>{plural(count, "source")}</b>
        <span className="ui-meta">
          <Icon of={ChevronRight} size="sm" className="ui-chevron" />
        </span>
      </summary>
      {isOpen && (
        <ul className="tool-steps">
          {row.sources.map((source, index) => (
            <li key={index}>
              <WebLink url={source.url} title={source.title ?? ""} />
            </li>
          ))}
        </ul>
      )}
    </details>
  );
}

const workspaceCards = () => import("../tools/workspace-card");

const CARDS: Readonly<Record<CardKind, ComponentType<CardProps>>> = {
  "agent-message": MessageAgentCard,
  "agent-stop": InterruptAgentCard,
  "agent-wait": WaitCard,
  agents: ListAgentsCard,
  attachment: AttachCard,
  browser: lazy(async () => ({ default: (await import("../tools/computer-card")).BrowserCard })),
  command: CommandCard,
  computer: lazy(async () => ({ default: (await import("../tools/computer-card")).ComputerCard })),
  edit: EditCard,
  generic: GenericCard,
  memory: lazy(async () => ({ default: (await import("../tools/memory-card")).MemoryCard })),
  plan: PlanCard,
  "process-signal": ProcessSignalCard,
  processes: ProcessListCard,
  question: QuestionCard,
  read: ReadCard,
  search: SearchCard,
  skill: SkillCard,
  spawn: SpawnCard,
  templates: lazy(async () => ({ default: (await workspaceCards()).TemplatesCard })),
  web: WebSearchCard,
  workspace: lazy(async () => ({ default: (await workspaceCards()).WorkspaceCard })),
  write: WriteCard,
};

function ToolCard(props: CardProps) {
  const { state, request } = props.call;
  if (state === "waiting" && request?.kind === "approval") return <ApprovalCard {...props} />;
  if (state === "waiting" && request?.kind !== "question") return <RequestedCard {...props} />;
  return <Suspense fallback={<GenericCard {...props} />}>{createElement(CARDS[callView(props.call).card], props)}</Suspense>;
}

// What the user said, with files and quoted lines; or what is on its way.

function UserBubble({ row }: { readonly row: UserRow }) {
  return (
    <>
      <div className={row.pending === null ? "timeline-prompt" : "timeline-prompt is-pending"}>
        <UserText text={row.text} />
        {row.references.length > 0 && <ReferenceList references={row.references} />}
        {row.files.length > 0 && <FileList files={row.files} />}
      </div>
      {row.isSteering && (
        <div className="timeline-prompt-meta">
          <Icon of={CornerRightDown} size="sm" />
          Steered the running turn
        </div>
      )}
      {row.pending !== null && <PendingNote pending={row.pending} />}
      {row.messageId !== null && <VersionControl messageId={row.messageId} />}
    </>
  );
}

/** Users write plain text; only `code` is set apart. */
function UserText({ text }: { readonly text: string }) {
  return (
    <LongText
      text={text}
      render={(shown) => shown.split(/(`[^`\n]+`)/).map((piece, index) => (index % 2 === 1 ? <code key={index}>{piece.slice(1, -1)}</code> : piece))}
    />
  );
}

function PendingNote({ pending }: { readonly pending: PendingSend }) {
  const { discardSend, editSend } = useTimelineActions();
  if (!pending.isKept) {
    return (
      <div className="timeline-prompt-meta">
        <Spinner />
        Sending
      </div>
    );
  }
  return (
    <div className="timeline-prompt-meta" role="status">
      <Icon of={CloudOff} size="sm" />
      <span>Kept here. It is sent when the server answers.</span>
      <Button size="xs" variant="quiet" onClick={() => editSend(pending.id)}>
        Edit
      </Button>
      <Button size="xs" variant="quiet" onClick={() => discardSend(pending.id)}>
        Discard
      </Button>
    </div>
  );
}

// What the model thought. Folded, but for the thought that it has now.

function Reasoning({ row }: { readonly row: ReasoningRow }) {
  const [isOpen, setOpen] = useOpen(row.key, row.isLive);
  const took = row.durationMs === null ? null : durationText(row.durationMs);
  return (
    <details className="timeline-reasoning" open={isOpen}>
      <summary
        onClick={(event) => {
          event.preventDefault();
          setOpen(!isOpen);
        }}
      >
        <Icon of={Sparkle} />
        <span className="ui-ellipsis">{titleOf(row, took)}</span>
        {row.isLive && row.startedAt !== null && (
          <span className="tone-subtle">
            <Elapsed since={row.startedAt} />
          </span>
        )}
        {!row.isLive && row.title !== null && took !== null && <span className="tone-subtle">{took}</span>}
        <Icon of={ChevronRight} size="sm" className="ui-chevron" />
      </summary>
      {isOpen && row.text !== "" && <Markdown text={row.text} isLive={row.isLive} className="timeline-reasoning-text" />}
    </details>
  );
}

function titleOf(row: ReasoningRow, took: string | null): string {
  if (row.title !== null) return row.title;
  if (row.isLive) return "Thinking";
  return took === null ? "Thought" : `Thought for ${took.replace(/\.\d s$/, " s").replace(/^0 s$/, "a moment")}`;
}

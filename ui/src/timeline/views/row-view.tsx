/** One row of the timeline. A row that has not changed is not rendered again. */
import { ChevronRight, Globe } from "lucide-react";
import { memo } from "react";
import { Icon } from "@/components";
import { Markdown } from "@/text/markdown";
import { FileList } from "../files";
import type { Row, SourcesRow } from "../rows/row";
import { ReadsLine } from "../tools/file-cards";
import { useOpen } from "../tools/open-rows";
import { WebLink } from "../tools/other-cards";
import { ToolCard } from "../tools/registry";
import { ActivityLine, CalloutView, NoteLine } from "./callouts";
import { MarkLine } from "./mark-line";
import { Reasoning } from "./reasoning";
import { UserBubble } from "./user-bubble";

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
        <b>{count === 1 ? "1 source" : `${count} sources`}</b>
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

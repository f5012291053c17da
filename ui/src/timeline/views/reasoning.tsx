/** What the model thought. Folded, but for the thought that it has now. */
import { ChevronRight, Sparkle } from "lucide-react";
import { durationText, Elapsed, Icon } from "@/components";
import { Markdown } from "@/text/markdown";
import type { ReasoningRow } from "../rows/row";
import { useOpen } from "../tools/open-rows";

export function Reasoning({ row }: { readonly row: ReasoningRow }) {
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

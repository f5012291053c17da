import { ArrowRightLeft, ShieldCheck } from "lucide-react";
import { type ReactNode, useState } from "react";
import { Button, Icon, StatusIcon } from "@/components";
import { type EarlierTurn, earlierTurn } from "./attempt-words";
import type { Turn } from "./record";

const FIRST = 3;

function lookIcon(look: EarlierTurn["look"]): ReactNode {
  switch (look) {
    case "done":
      return <StatusIcon status="done" size="sm" decorative />;
    case "recovered":
      return <Icon of={ShieldCheck} size="sm" className="tone-ok" />;
    case "deploy":
      return <Icon of={ArrowRightLeft} size="sm" className="tone-info" />;
    case "failed":
      return <StatusIcon status="error" size="sm" decorative />;
    case "needs":
      return <StatusIcon status="requires_action" size="sm" decorative />;
    default:
      return <StatusIcon status="stopped" size="sm" decorative />;
  }
}

interface EarlierTurnsProps {
  readonly turns: readonly Turn[];
  readonly hasMore: boolean;
  readonly isLoadingMore: boolean;
  readonly onMore: () => void;
  readonly onChoose: (turn: number) => void;
}

/** One line a turn; a press shows its attempts above. */
export function EarlierTurns({ turns, hasMore, isLoadingMore, onMore, onChoose }: EarlierTurnsProps) {
  const [isOpen, setOpen] = useState(false);
  const shown = isOpen ? turns : turns.slice(0, FIRST);
  if (turns.length === 0) return null;
  return (
    <>
      <h3 className="panel-heading">
        Other turns
        {turns.length > FIRST && (
          <span className="ui-meta">
            <button type="button" className="ui-link" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
              {isOpen ? "Fewer" : hasMore ? "All" : `All ${turns.length}`}
            </button>
          </span>
        )}
      </h3>
      <div className="runs-turns">
        {shown.map((turn) => {
          const line = earlierTurn(turn);
          return (
            <button key={turn.turn} type="button" onClick={() => onChoose(turn.turn)}>
              {lookIcon(line.look)}
              <b>Turn {turn.turn}</b>
              <span className="ui-ellipsis">{line.text}</span>
              <span>{line.meta}</span>
            </button>
          );
        })}
      </div>
      {isOpen && hasMore && (
        <Button size="xs" variant="quiet" busy={isLoadingMore} onClick={onMore}>
          Earlier turns
        </Button>
      )}
    </>
  );
}

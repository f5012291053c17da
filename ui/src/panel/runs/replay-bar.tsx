import { Download, Pause, Play } from "lucide-react";
import { useEffect, useEffectEvent, useState } from "react";
import { Button, IconButton, Menu, MenuItem } from "@/components";
import type { Turn } from "./runs";

const STEP_MS = 900;
const MAX_MARKS = 200;

interface ReplayBarProps {
  readonly chatId: string;
  /** Newest first. */
  readonly turns: readonly Turn[];
  readonly shown: number;
  readonly version: number;
  readonly onChoose: (turn: number) => void;
}

/** The turns as a line to move along, with what was lost and taken over on it. */
export function ReplayBar({ chatId, turns, shown, version, onChoose }: ReplayBarProps) {
  const first = turns.at(-1)?.turn ?? 1;
  const last = turns[0]?.turn ?? 1;
  const [isPlaying, togglePlaying] = usePlaying(shown, first, last, onChoose);
  const isNow = shown === last;
  return (
    <div className="runs-replay">
      <IconButton size="sm" icon={isPlaying ? Pause : Play} label={isPlaying ? "Pause" : "Play the turns"} disabled={first === last} onClick={togglePlaying} />
      <div className="runs-replay-line">
        <svg viewBox="0 0 300 24" preserveAspectRatio="none" aria-hidden="true">
          <path d="M0 12h300" className="runs-lane-grid" strokeWidth="2" />
          <path d={`M0 12H${xOf(shown, first, last)}`} className="runs-lane-now" strokeWidth="2" />
          {turns.slice(0, MAX_MARKS).map((turn) => (
            <Mark key={turn.turn} turn={turn} x={xOf(turn.turn, first, last)} />
          ))}
        </svg>
        <input
          type="range"
          aria-label="Turn that is shown"
          aria-valuetext={`Turn ${shown} of ${last}`}
          min={first}
          max={Math.max(last, first + 1)}
          value={shown}
          disabled={first === last}
          onChange={(event) => onChoose(Math.min(last, Number(event.target.value)))}
        />
      </div>
      <span>{isNow ? `Version ${version.toLocaleString("en")}, now` : `Turn ${shown} of ${last}`}</span>
      <Menu
        label="Export"
        side="top"
        trigger={
          <Button size="xs" variant="quiet" icon={Download}>
            Export
          </Button>
        }
      >
        <MenuItem hint="Everything, one line an event; can be imported" onSelect={() => download(chatId, "jsonl")}>
          JSON lines
        </MenuItem>
        <MenuItem hint="To read and to share" onSelect={() => download(chatId, "markdown")}>
          Markdown
        </MenuItem>
      </Menu>
    </div>
  );
}

function Mark({ turn, x }: { turn: Turn; x: number }) {
  const lost = turn.attempts.some((attempt) => attempt.outcome === "lost");
  const taken = turn.attempts.some((attempt) => attempt.takeover !== null);
  return (
    <>
      <path d={`M${x} 7v10`} className="runs-replay-turn" />
      {lost && <path d={`M${Math.max(1, x - 4)} 5v14`} className="runs-replay-lost" />}
      {taken && <path d={`M${Math.max(5, x)} 5v14`} className="runs-replay-taken" />}
    </>
  );
}

function xOf(turn: number, first: number, last: number): number {
  return last === first ? 299 : 1 + ((turn - first) / (last - first)) * 298;
}

function usePlaying(shown: number, first: number, last: number, onChoose: (turn: number) => void): [boolean, () => void] {
  const [isPlaying, setPlaying] = useState(false);
  const step = useEffectEvent(() => {
    if (shown >= last) setPlaying(false);
    else onChoose(shown + 1);
  });
  useEffect(() => {
    if (!isPlaying) return;
    const timer = setInterval(step, STEP_MS);
    return () => clearInterval(timer);
  }, [isPlaying]);
  const toggle = () => {
    if (!isPlaying && shown >= last) onChoose(first);
    setPlaying(!isPlaying);
  };
  return [isPlaying, toggle];
}

/** A download by the browser: the cookie goes with it, and nothing is kept in memory. */
function download(chatId: string, format: "jsonl" | "markdown"): void {
  const link = document.createElement("a");
  link.href = `/api/v1/chats/${chatId}/export?format=${format}`;
  link.download = "";
  link.click();
}

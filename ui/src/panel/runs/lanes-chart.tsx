import { Cpu } from "lucide-react";
import type { ChatStatus } from "@/chat-state/types";
import { Icon, useNow } from "@/components";
import { useWidth } from "@/platform/media";
import { durationText } from "@/platform/words";
import { LABEL_PX, type LanesInput, layOutLanes } from "./lanes";
import { isOpen, type RunPage, type Turn, turnMs } from "./runs";

const LANE = 30;
const TOP = 6;
const BAR = 16;
const USUAL_WIDTH = 432;

const middle = (lane: number): number => TOP + lane * LANE + BAR / 2;

/** Who had the turn when, as lanes of time. The list below says the same in words. */
function LanesChart(input: Omit<LanesInput, "width" | "now">) {
  const [ref, width] = useWidth();
  const now = useNow();
  const shown = width === 0 ? USUAL_WIDTH : width;
  const layout = layOutLanes({ ...input, now, width: shown });
  const bottom = TOP + layout.names.length * LANE - 8;
  return (
    <div className="runs-lanes">
      <div ref={ref}>
        <svg viewBox={`0 0 ${shown} ${bottom + 22}`} role="img" aria-label={layout.description}>
          {layout.ticks.map((tick) => (
            <g key={tick.x}>
              <path d={`M${tick.x} 0V${bottom}`} className="runs-lane-grid" />
              <text x={tick.x} y={bottom + 17} className="runs-lane-tick" textAnchor={tick.x - LABEL_PX < 2 ? "start" : "middle"}>
                {tick.text}
              </text>
            </g>
          ))}
          {layout.names.map((name, lane) => (
            <text key={lane} x="0" y={middle(lane) + 4} className="runs-lane-name">
              {name}
            </text>
          ))}
          {layout.idle.map((idle) => (
            <g key={idle.lane}>
              <path d={`M${LABEL_PX} ${middle(idle.lane)}H${idle.toX}`} className="runs-lane-idle" />
              <text x={LABEL_PX + 8} y={middle(idle.lane) + 4} className="runs-lane-tick runs-halo">
                {idle.text}
              </text>
            </g>
          ))}
          {layout.nowX !== null && <path d={`M${layout.nowX} 0V${bottom}`} className="runs-lane-now" />}
          {layout.bars.map((bar) => (
            <g key={bar.key} className={`runs-lane-bar is-${bar.look}`}>
              <title>{bar.title}</title>
              <rect x={bar.x} y={TOP + bar.lane * LANE} width={bar.width} height={BAR} rx={Math.min(4, bar.width / 2)} />
              {bar.label !== "" && (
                <text x={bar.x + 7} y={TOP + bar.lane * LANE + 11.5}>
                  {bar.label}
                </text>
              )}
            </g>
          ))}
          {layout.handovers.map((one) => (
            <g key={one.key} className={`runs-lane-link is-${one.tone}`}>
              <path d={linkPath(one.from, one.to)} />
              {one.label !== null && (
                <text x={one.label.x} y={middle(one.label.lane) + 4} textAnchor={one.label.anchor}>
                  {one.label.text}
                </text>
              )}
            </g>
          ))}
        </svg>
      </div>
    </div>
  );
}

function linkPath(from: { x: number; lane: number }, to: { x: number; lane: number }): string {
  const bend = Math.max(8, (to.x - from.x) / 2);
  return `M${from.x} ${middle(from.lane)}C${from.x + bend} ${middle(from.lane)} ${to.x - bend} ${middle(to.lane)} ${to.x} ${middle(to.lane)}`;
}

interface LeaseProps {
  readonly page: RunPage;
  readonly readAt: number;
  readonly turn: Turn;
  readonly isNewest: boolean;
  readonly status: ChatStatus;
}

/** Who has the chat, and the turn that is shown as lanes of time. */
export function Lease({ page, readAt, turn, isNewest, status }: LeaseProps) {
  const now = useNow();
  const { holder } = page;
  const open = isNewest && isOpen(turn);
  const renewed = holder?.renewed_ms_ago == null ? null : holder.renewed_ms_ago + Math.max(0, now - readAt);
  const nextAt = open && page.next_attempt_at !== null && turn.outcome !== "running" ? Date.parse(page.next_attempt_at) : null;
  return (
    <div className="runs-lease">
      <dl>
        <div>
          <dt>Worker</dt>
          <dd>
            {holder === null ? (
              <span className="tone-muted">{status === "pending" || status === "running" ? "Waiting for one" : "None needed"}</span>
            ) : (
              <>
                <Icon of={Cpu} size="sm" className="tone-accent" />
                <span className="ui-ellipsis" title={holder.worker.host}>
                  {holder.worker.name}
                </span>
              </>
            )}
          </dd>
        </div>
        <div>
          <dt>Lease renewed</dt>
          <dd>{renewed === null ? <span className="tone-muted">No lease</span> : `${durationText(renewed)} ago`}</dd>
        </div>
        <div>
          <dt>{open ? "This turn" : `Turn ${turn.turn}`}</dt>
          <dd>{durationText(turnMs(turn, now))}</dd>
        </div>
      </dl>
      <LanesChart turn={turn} workers={page.workers} nextAt={nextAt} />
    </div>
  );
}

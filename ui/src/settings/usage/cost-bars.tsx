/** The bars by day as SVG, with the amounts of the day under the pointer, and as a table for readers of the screen. */
import { useState } from "react";
import type { Bar, Chart } from "./cost-chart";
import { moneyText } from "./money";

const WIDTH = 880;
const HEIGHT = 200;
const LEFT = 48;
const BOTTOM = 24;
const TOP = 12;

const dayText = (day: string): string =>
  new Date(`${day}T00:00:00Z`).toLocaleDateString(undefined, { day: "numeric", month: "short", timeZone: "UTC" });

export function CostBars({ chart }: { chart: Chart }) {
  const [shown, setShown] = useState<number | null>(null);
  const step = (WIDTH - LEFT) / Math.max(1, chart.bars.length);
  const y = (micros: number) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - micros / chart.top);
  const labels = new Set(chart.bars.map((_, place) => place).filter((place) => place % Math.ceil(chart.bars.length / 6) === 0));
  const bar = shown === null ? undefined : chart.bars[shown];
  return (
    <div className="settings-card usage-chart">
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} aria-hidden="true" onPointerLeave={() => setShown(null)}>
        {chart.ticks.map((tick) => (
          <g key={tick}>
            <line x1={LEFT} x2={WIDTH} y1={y(tick)} y2={y(tick)} stroke="var(--hairline)" />
            <text x={LEFT - 8} y={y(tick) + 4} textAnchor="end">{moneyText(tick)}</text>
          </g>
        ))}
        {chart.bars.map((one, place) => (
          <g key={one.day} onPointerEnter={() => setShown(place)}>
            <rect x={LEFT + place * step} y={TOP} width={step} height={HEIGHT - TOP - BOTTOM} fill={shown === place ? "var(--hover)" : "transparent"} />
            {one.pieces.map((piece) => (
              <rect
                key={piece.series}
                x={LEFT + place * step + step * 0.15}
                width={Math.max(1, step * 0.7)}
                y={y(piece.to)}
                height={Math.max(0.5, y(piece.from) - y(piece.to))}
                fill={`var(--chart-${(piece.series % 5) + 1})`}
              />
            ))}
            {labels.has(place) && <text x={LEFT + (place + 0.5) * step} y={HEIGHT - 8} textAnchor="middle">{dayText(one.day)}</text>}
          </g>
        ))}
      </svg>
      {bar !== undefined && shown !== null && <DayAmounts bar={bar} series={chart.series} left={(LEFT + (shown + 0.5) * step) / WIDTH} />}
      <table className="ui-screen-reader">
        <caption>Costs by day</caption>
        <tbody>
          {chart.bars.filter((one) => one.total > 0).map((one) => (
            <tr key={one.day}>
              <th scope="row">{one.day}</th>
              <td>{moneyText(one.total)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function DayAmounts({ bar, series, left }: { bar: Bar; series: readonly string[]; left: number }) {
  return (
    <div className="usage-chart-tip" style={{ left: `${Math.min(80, Math.max(8, left * 100))}%` }}>
      <b className="ui-strong">{dayText(bar.day)}</b> {moneyText(bar.total)}
      {bar.pieces.map((piece) => (
        <p key={piece.series} className="tone-muted">
          {series[piece.series]}: {moneyText(piece.to - piece.from)}
        </p>
      ))}
    </div>
  );
}

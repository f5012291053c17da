/** What model calls have cost: one's own, or those of all users. */
import "@/styles/administration.css";
import { Download } from "lucide-react";
import { useState } from "react";
import { Link } from "wouter";
import { api } from "@/api/client";
import type { components } from "@/api/schema";
import { EmptyState, Icon, Meter, Segmented } from "@/components";
import { useIsPhone } from "@/platform/media";
import { countText, moneyText } from "@/platform/words";
import { Loaded, readAll, Section, SettingsPage, useResource } from "../frame";
import { type Bar, type Chart, makeChart } from "./cost-chart";

type Totals = components["schemas"]["AllCostsReply"];
type Range = "7" | "30" | "365";

const DAY_MS = 86_400_000;

/** The days up to and with today, in UTC as the server counts them. */
export function rangeOf(days: number, now: number): { start_date: string; end_date: string } {
  const text = (at: number) => new Date(at).toISOString().slice(0, 10);
  return { start_date: text(now - (days - 1) * DAY_MS), end_date: text(now + DAY_MS) };
}

function useRange() {
  const [range, setRange] = useState<Range>("30");
  const [now] = useState(() => Date.now());
  const choice = (
    <Segmented
      label="Time"
      value={range}
      options={[
        { value: "7", label: "7 days" },
        { value: "30", label: "30 days" },
        { value: "365", label: "Year" },
      ]}
      onChange={setRange}
    />
  );
  return { days: Number(range), query: rangeOf(Number(range), now), choice };
}

export function OwnUsagePage() {
  const { days, query, choice } = useRange();
  const costs = useResource(["my-costs", days], () => api.GET("/api/v1/cost/me/summary", { query }));
  const status = useResource(["spend-status"], () => api.GET("/api/v1/usage-limits/status"));
  return (
    <SettingsPage title="Usage" lead="Every model call is counted when it is saved, also those of subagents." end={choice}>
      <Loaded query={costs}>
        {(found) => (
          <>
            <Figures totals={found} days={days}>
              {status.data && <LimitFigure status={status.data} />}
            </Figures>
            <ByDay costs={found} />
            <Section title="By chat">
              <div className="settings-card settings-padded">
                {found.by_chat.length === 0 ? (
                  <EmptyState>No calls in this time.</EmptyState>
                ) : (
                  <Bars
                    grey
                    rows={found.by_chat.slice(0, 12).map((chat) => ({
                      name: chat.chat_title ?? "A deleted chat",
                      href: chat.chat_title === null ? null : `/c/${chat.root_chat_id}`,
                      micros: chat.total_cost_micros,
                    }))}
                  />
                )}
              </div>
            </Section>
          </>
        )}
      </Loaded>
    </SettingsPage>
  );
}

export function ServerUsagePage() {
  const { days, query, choice } = useRange();
  const costs = useResource(["all-costs", days], () => api.GET("/api/v1/cost/summary", { query }));
  const users = useResource(["user-costs", days], () => readAll((page) => api.GET("/api/v1/cost/users", { query: { ...page, ...query } })));
  const csv = `/api/v1/cost/export.csv?start_date=${query.start_date}&end_date=${query.end_date}`;
  const end = (
    <>
      {choice}
      <a className="ui-button" href={csv} download>
        <Icon of={Download} />
        Export CSV
      </a>
    </>
  );
  return (
    <SettingsPage title="Usage" lead="Every model call is counted when it is saved, also those of subagents." end={end}>
      <Loaded query={costs}>
        {(found) => (
          <>
            <Figures totals={found} days={days} />
            <ByDay costs={found} />
            <div className="usage-grid">
              <Section title="By model">
                <div className="settings-card settings-padded">
                  <Bars rows={found.by_model.slice(0, 8).map((one) => ({ name: one.model, href: null, micros: one.total_cost_micros }))} />
                </div>
              </Section>
              <Section title="By user">
                <div className="settings-card settings-padded">
                  <Loaded query={users}>
                    {(list) => <Bars grey rows={list.slice(0, 8).map((one) => ({ name: one.username, href: null, micros: one.total_cost_micros }))} />}
                  </Loaded>
                </div>
              </Section>
            </div>
          </>
        )}
      </Loaded>
    </SettingsPage>
  );
}

type Sums = Pick<Totals, "total_cost_micros" | "call_count" | "unpriced_call_count" | "total_input_tokens" | "total_output_tokens" | "total_cache_read_tokens">;

function Figures({ totals, days, children }: { totals: Sums; days: number; children?: React.ReactNode }) {
  const input = totals.total_input_tokens + totals.total_cache_read_tokens;
  const cached = input > 0 ? Math.round((totals.total_cache_read_tokens / input) * 100) : 0;
  return (
    <dl className="settings-card usage-totals">
      <div>
        <dt>Spent in {days} days</dt>
        <dd>
          {moneyText(totals.total_cost_micros)}
          {children ?? <small className="tone-muted">{moneyText(Math.round(totals.total_cost_micros / days))} a day</small>}
        </dd>
      </div>
      <div>
        <dt>Model calls</dt>
        <dd>
          {countText(totals.call_count)}
          <small className="tone-muted">
            {totals.unpriced_call_count > 0 ? `${countText(totals.unpriced_call_count)} without a price` : "all with a price"}
          </small>
        </dd>
      </div>
      <div>
        <dt>Tokens in</dt>
        <dd>
          {countText(input)}
          <small className="tone-muted">{cached}% from cache</small>
        </dd>
      </div>
      <div>
        <dt>Tokens out</dt>
        <dd>
          {countText(totals.total_output_tokens)}
          <small className="tone-muted">with reasoning</small>
        </dd>
      </div>
    </dl>
  );
}

function LimitFigure({ status }: { status: components["schemas"]["SpendStatusReply"] }) {
  const limit = status.spend_limit_micros;
  if (limit === null) return <small className="tone-muted">No limit.</small>;
  return (
    <>
      <Meter label="Spent of the limit" value={status.current_spend_micros} max={limit} />
      <small className="tone-muted">
        {moneyText(status.current_spend_micros)} of {moneyText(limit)} this {status.period}
      </small>
    </>
  );
}

function ByDay({ costs }: { costs: Pick<Totals, "by_day_and_model" | "start_date" | "end_date"> }) {
  const chart = makeChart(costs.by_day_and_model, costs.start_date, costs.end_date);
  const legend = (
    <span className="usage-legend">
      {chart.series.map((name, place) => (
        <span key={name}>
          <i style={{ background: `var(--chart-${(place % 5) + 1})` }} />
          {name}
        </span>
      ))}
    </span>
  );
  return (
    <Section title="By day" end={legend}>
      <CostBars chart={chart} />
    </Section>
  );
}

interface BarRow {
  name: string;
  href: string | null;
  micros: number;
}

/** Horizontal bars, the longest first. Users and chats are grey: a hue would mean a model. */
function Bars({ rows, grey = false }: { rows: readonly BarRow[]; grey?: boolean }) {
  const most = Math.max(1, ...rows.map((row) => row.micros));
  if (rows.length === 0) return <p className="tone-muted">No calls in this time.</p>;
  return (
    <ul className="usage-bars">
      {rows.map((row, place) => (
        <li key={`${place}${row.name}`}>
          <span className="ui-ellipsis">
            {row.href === null ? (
              row.name
            ) : (
              <Link className="ui-link" href={row.href}>
                {row.name}
              </Link>
            )}
          </span>
          <span
            className="usage-bar"
            style={{ width: `${Math.max(0.5, (row.micros / most) * 100)}%`, background: grey ? "var(--chart-5)" : `var(--chart-${(place % 5) + 1})` }}
          />
          <span className="settings-right">{moneyText(row.micros)}</span>
        </li>
      ))}
    </ul>
  );
}

// The bars by day as SVG, with the amounts of the day under the pointer, and as a table for readers of the screen.

/** In pixels of the drawing: on a phone it is drawn nearly as large as it is shown, so that its words can be read. */
const WIDTH = 880;
const PHONE_WIDTH = 360;
const HEIGHT = 200;
const LEFT = 48;
const BOTTOM = 24;
const TOP = 12;

const dayText = (day: string): string => new Date(`${day}T00:00:00Z`).toLocaleDateString(undefined, { day: "numeric", month: "short", timeZone: "UTC" });

function CostBars({ chart }: { chart: Chart }) {
  const [shown, setShown] = useState<number | null>(null);
  const isPhone = useIsPhone();
  const width = isPhone ? PHONE_WIDTH : WIDTH;
  const step = (width - LEFT) / Math.max(1, chart.bars.length);
  const y = (micros: number) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - micros / chart.top);
  const labels = new Set(chart.bars.map((_, place) => place).filter((place) => place % Math.ceil(chart.bars.length / (isPhone ? 3 : 6)) === 0));
  const bar = shown === null ? undefined : chart.bars[shown];
  return (
    <div className="settings-card usage-chart">
      <svg viewBox={`0 0 ${width} ${HEIGHT}`} aria-hidden="true" onPointerLeave={() => setShown(null)}>
        {chart.ticks.map((tick) => (
          <g key={tick}>
            <line x1={LEFT} x2={width} y1={y(tick)} y2={y(tick)} stroke="var(--hairline)" />
            <text x={LEFT - 8} y={y(tick) + 4} textAnchor="end">
              {moneyText(tick)}
            </text>
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
            {labels.has(place) && (
              <text x={LEFT + (place + 0.5) * step} y={HEIGHT - 8} textAnchor="middle">
                {dayText(one.day)}
              </text>
            )}
          </g>
        ))}
      </svg>
      {bar !== undefined && shown !== null && <DayAmounts bar={bar} series={chart.series} left={(LEFT + (shown + 0.5) * step) / width} />}
      <table className="ui-screen-reader">
        <caption>Costs by day</caption>
        <tbody>
          {chart.bars
            .filter((one) => one.total > 0)
            .map((one) => (
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

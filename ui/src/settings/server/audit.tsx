/** The audit log: who did what, newest first, for people. The filters are part of the address. */
import "@/styles/administration.css";
import { useInfiniteQuery } from "@tanstack/react-query";
import { Download, ScrollText, X } from "lucide-react";
import { useState } from "react";
import { useLocation, useSearch } from "wouter";
import { api } from "@/api/client";
import { queryKeys } from "@/api/queries";
import type { components } from "@/api/schema";
import { Button, EmptyState, ErrorNote, Field, Icon, Skeleton, Tag, TextField, Time } from "@/components";
import { Section, SettingsPage, Table, useResource } from "../frame";

type Entry = components["schemas"]["AuditEntryReply"];
type Change = (change: Partial<AuditFilters>) => void;

const KINDS: readonly (readonly [string, string])[] = [
  ["", "Everything"],
  ["chat", "Chats"],
  ["file", "Files"],
  ["workspace", "Workspaces"],
  ["user", "Users"],
  ["group", "Groups"],
  ["session", "Sessions"],
  ["token", "API tokens"],
  ["git_credential", "Tokens for git hosts"],
  ["host_credential", "Credentials of hosts"],
  ["provider", "Providers"],
  ["model", "Models"],
  ["mcp_server", "MCP servers"],
  ["webhook", "Webhooks"],
  ["tool_policy", "Tool policies"],
  ["spend_limit", "Spend limits"],
  ["settings", "Settings"],
  ["audit_log", "Audit log"],
];

export function AuditPage() {
  const [path, navigate] = useLocation();
  const filters = readFilters(useSearch());
  const change: Change = (part) => {
    const query = writeFilters({ ...filters, ...part });
    navigate(query === "" ? path : `${path}?${query}`, { replace: true });
  };
  const log = useInfiniteQuery({
    queryKey: queryKeys.settings("audit", queryOf(filters)),
    initialPageParam: null as string | null,
    queryFn: ({ pageParam }) => api.GET("/api/v1/audit", { query: { limit: 100, ...queryOf(filters), ...(pageParam === null ? {} : { cursor: pageParam }) } }),
    getNextPageParam: (page) => page.next_cursor,
  });
  const entries = log.data?.pages.flatMap((page) => page.items) ?? [];
  const isFiltered = writeFilters(filters) !== "";
  return (
    <SettingsPage
      title="Audit log"
      lead="Changes by users and administrators, sign-ins, and reads of other users' chats by administrators and viewers."
      end={
        <a className="ui-button" href={exportPath(filters)} download>
          <Icon of={Download} />
          Export as CSV
        </a>
      }
    >
      <Section
        title="Filters"
        end={
          isFiltered && (
            <Button size="sm" icon={X} onClick={() => change(NO_FILTERS)}>
              Clear
            </Button>
          )
        }
      >
        <FilterForm key={isFiltered ? "some" : "none"} filters={filters} onChange={change} />
      </Section>
      <Section title="Entries">
        {log.error !== null && (
          <ErrorNote
            error={log.error}
            action={
              <Button size="sm" onClick={() => void log.refetch()}>
                Try again
              </Button>
            }
          />
        )}
        {log.isPending && <Skeleton rows={5} />}
        {!log.isPending && log.error === null && entries.length === 0 && (
          <EmptyState icon={ScrollText}>{isFiltered ? "No entry fits these filters." : "Nothing is recorded yet."}</EmptyState>
        )}
        {entries.length > 0 && (
          <Table label="Audit log" heads={["When", "What", "From"]}>
            {entries.map((entry) => (
              <EntryRow key={entry.id} entry={entry} onChange={change} />
            ))}
          </Table>
        )}
        {log.hasNextPage && (
          <Button className="settings-apart" busy={log.isFetchingNextPage} onClick={() => void log.fetchNextPage()}>
            Older entries
          </Button>
        )}
      </Section>
    </SettingsPage>
  );
}

function FilterForm({ filters, onChange }: { filters: AuditFilters; onChange: Change }) {
  const [text, setText] = useState(filters.text);
  return (
    <form
      className="settings-card settings-form audit-filters"
      onSubmit={(event) => {
        event.preventDefault();
        onChange({ text });
      }}
    >
      <PersonField filters={filters} onChange={onChange} />
      <TextField
        label="From"
        type="date"
        value={filters.from}
        max={filters.to === "" ? undefined : filters.to}
        onChange={(event) => onChange({ from: event.target.value })}
      />
      <TextField
        label="To"
        type="date"
        value={filters.to}
        min={filters.from === "" ? undefined : filters.from}
        onChange={(event) => onChange({ to: event.target.value })}
      />
      <TextField
        label="Text"
        aside="of what was done"
        placeholder="price, sign in, suspended"
        value={text}
        onChange={(event) => setText(event.target.value)}
        onBlur={() => onChange({ text })}
      />
      <Field label="Kind of object">
        {(names) => (
          <select
            {...names}
            className="ui-select"
            value={filters.kind}
            onChange={(event) => onChange({ kind: event.target.value, object: "", objectName: "" })}
          >
            {KINDS.map(([kind, label]) => (
              <option key={kind} value={kind}>
                {label}
              </option>
            ))}
          </select>
        )}
      </Field>
      <div className="ui-form-field">
        <span className="ui-label">Object</span>
        {filters.object === "" ? (
          <p className="tone-muted audit-hint">Choose an object in an entry.</p>
        ) : (
          <Chosen name={filters.objectName || filters.object} onRemove={() => onChange({ object: "", objectName: "" })} />
        )}
      </div>
      <button type="submit" className="ui-screen-reader" tabIndex={-1}>
        Apply
      </button>
    </form>
  );
}

/** A user, found by a part of the name. */
function PersonField({ filters, onChange }: { filters: AuditFilters; onChange: Change }) {
  const [text, setText] = useState("");
  const wanted = text.trim();
  const found = useResource(["directory", wanted], () =>
    wanted === "" ? Promise.resolve(null) : api.GET("/api/v1/directory", { query: { q: wanted, limit: 8 } }),
  );
  if (filters.actor !== "") {
    return (
      <div className="ui-form-field">
        <span className="ui-label">Person</span>
        <Chosen name={filters.actorName || filters.actor} onRemove={() => onChange({ actor: "", actorName: "" })} />
      </div>
    );
  }
  const users = wanted === "" ? [] : (found.data?.users ?? []);
  return (
    <div className="ui-form-field">
      <TextField label="Person" placeholder="A part of the name" value={text} onChange={(event) => setText(event.target.value)} />
      {users.length > 0 && (
        <ul className="settings-list">
          {users.map((user) => (
            <li key={user.id}>
              <button
                type="button"
                className="settings-option ui-grow"
                onClick={() => {
                  setText("");
                  onChange({ actor: user.id, actorName: user.username });
                }}
              >
                {user.username}
              </button>
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}

function Chosen({ name, onRemove }: { name: string; onRemove: () => void }) {
  return (
    <span className="ui-chip audit-chosen">
      <span className="ui-ellipsis">{name}</span>
      <button type="button" aria-label={`Do not filter by ${name}`} onClick={onRemove}>
        <Icon of={X} size="sm" />
      </button>
    </span>
  );
}

function EntryRow({ entry, onChange }: { entry: Entry; onChange: Change }) {
  const { actor_id: actor, object_text: object } = entry;
  const place = entry.summary.indexOf(object);
  const name = entry.object_name ?? object;
  return (
    <tr>
      <td className="audit-when">
        <Time at={entry.at} />
      </td>
      <td className="audit-what">
        {actor == null ? (
          <span className="ui-strong">{entry.actor_name}</span>
        ) : (
          <button
            type="button"
            className="ui-strong audit-link"
            title="Only what this user did"
            onClick={() => onChange({ actor, actorName: entry.actor_name })}
          >
            {entry.actor_name}
          </button>
        )}{" "}
        {place < 0 ? (
          entry.summary
        ) : (
          <>
            {entry.summary.slice(0, place)}
            <button
              type="button"
              className="audit-link"
              title={`Only what was done to this object: ${entry.object_id}`}
              onClick={() => onChange({ kind: entry.object_type, object: entry.object_id, objectName: name })}
            >
              {object}
            </button>
            {entry.summary.slice(place + object.length)}
          </>
        )}{" "}
        {entry.outcome !== "done" && <Tag tone={entry.outcome === "refused" ? "warn" : "danger"}>{entry.outcome}</Tag>}
        <details className="audit-detail">
          <summary>Details</summary>
          <dl>
            <dt>Time</dt>
            <dd>{entry.at}</dd>
            <dt>Action</dt>
            <dd>
              <code>{entry.action}</code>
            </dd>
            <dt>Object</dt>
            <dd>
              <code>
                {entry.object_type} {entry.object_id}
              </code>
            </dd>
            {actor != null && (
              <>
                <dt>User</dt>
                <dd>
                  <code>{actor}</code>
                  {entry.actor !== entry.actor_name && `, then named ${entry.actor}`}
                </dd>
              </>
            )}
            {entry.detail !== null && Object.keys(entry.detail).length > 0 && (
              <>
                <dt>Change</dt>
                <dd>
                  <pre>{JSON.stringify(entry.detail, null, 2)}</pre>
                </dd>
              </>
            )}
          </dl>
        </details>
      </td>
      <td className="tone-muted">{entry.ip ?? ""}</td>
    </tr>
  );
}

// The filters of the audit log: as the address of the page has them, and as the API takes them. Pure.

interface AuditFilters {
  /** A user, with the name that is shown until the entries are read. */
  actor: string;
  actorName: string;
  /** Days of the browser's time zone, "2026-11-30"; the last one is part of the range. */
  from: string;
  to: string;
  kind: string;
  object: string;
  objectName: string;
  text: string;
}

export const NO_FILTERS: AuditFilters = { actor: "", actorName: "", from: "", to: "", kind: "", object: "", objectName: "", text: "" };

const NAMES = Object.keys(NO_FILTERS) as (keyof AuditFilters)[];

export function readFilters(search: string): AuditFilters {
  const given = new URLSearchParams(search);
  return Object.fromEntries(NAMES.map((name) => [name, given.get(name) ?? ""])) as unknown as AuditFilters;
}

export function writeFilters(filters: AuditFilters): string {
  return new URLSearchParams(NAMES.filter((name) => filters[name] !== "").map((name) => [name, filters[name]])).toString();
}

interface AuditQuery {
  actor_id?: string;
  object_type?: string;
  object_id?: string;
  since?: string;
  until?: string;
  q?: string;
}

export function queryOf(filters: AuditFilters): AuditQuery {
  const since = startOfDay(filters.from, 0);
  const until = startOfDay(filters.to, 1);
  const hasObject = filters.kind !== "" && filters.object !== "";
  return {
    ...(filters.actor === "" ? {} : { actor_id: filters.actor }),
    ...(filters.kind === "" ? {} : { object_type: filters.kind }),
    ...(hasObject ? { object_id: filters.object } : {}),
    ...(since === null ? {} : { since }),
    ...(until === null ? {} : { until }),
    ...(filters.text.trim() === "" ? {} : { q: filters.text.trim() }),
  };
}

/** Where the server makes the file; the browser's own session is enough to get it. */
export function exportPath(filters: AuditFilters): string {
  const query = new URLSearchParams({ ...queryOf(filters) }).toString();
  return `/api/v1/audit/export.csv${query === "" ? "" : `?${query}`}`;
}

function startOfDay(day: string, plus: number): string | null {
  const [year, month, date] = day.split("-").map(Number);
  if (year === undefined || month === undefined || date === undefined || Number.isNaN(year * month * date)) return null;
  return new Date(year, month - 1, date + plus).toISOString();
}

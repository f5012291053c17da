/** The filters of the audit log: as the address of the page has them, and as the API takes them. Pure. */

export interface AuditFilters {
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

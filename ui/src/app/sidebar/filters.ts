/** The filters of the list. They live in the address, so that a filtered list can be reloaded and shared. */
import { isUnread, type ListChat } from "./list-chat";

export const STATUS_FILTERS = ["running", "requires_action", "error", "waiting", "pending"] as const;
export type StatusFilter = (typeof STATUS_FILTERS)[number];

export interface ListFilters {
  archived: boolean;
  status: StatusFilter | null;
  /** As `key:value`; all must match. */
  labels: readonly string[];
  unread: boolean;
  source: "mine" | "shared" | null;
}

export const NO_FILTERS: ListFilters = { archived: false, status: null, labels: [], unread: false, source: null };

/** Unknown values are left out: an old link shows more, never an error. */
export function readFilters(search: string): ListFilters {
  const query = new URLSearchParams(search);
  const source = query.get("source");
  return {
    archived: query.get("archived") === "true",
    status: STATUS_FILTERS.find((one) => one === query.get("status")) ?? null,
    labels: query.getAll("label").filter((label) => /^[^:]+:/.test(label)),
    unread: query.get("unread") === "true",
    source: source === "mine" || source === "shared" ? source : null,
  };
}

/** The query with these filters in place of those it has; all else in it stays. */
export function writeFilters(search: string, filters: ListFilters): string {
  const query = new URLSearchParams(search);
  for (const name of ["archived", "status", "label", "unread", "source"]) query.delete(name);
  if (filters.archived) query.set("archived", "true");
  if (filters.status !== null) query.set("status", filters.status);
  for (const label of filters.labels) query.append("label", label);
  if (filters.unread) query.set("unread", "true");
  if (filters.source !== null) query.set("source", filters.source);
  return query.toString();
}

export function countFilters(filters: ListFilters): number {
  const flags = [filters.archived, filters.status !== null, filters.unread, filters.source !== null];
  return flags.filter(Boolean).length + filters.labels.length;
}

/** What the server does not filter by is left out here. */
export const passes = (chat: ListChat, filters: ListFilters): boolean => !filters.unread || isUnread(chat);

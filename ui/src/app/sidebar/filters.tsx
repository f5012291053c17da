/** The filters of the list. They live in the address, so that a filtered list can be reloaded and shared. */
import { ListFilter } from "lucide-react";
import { Chip, classes, IconButton, Menu, MenuChoice, MenuHeading, MenuSeparator } from "@/components";
import { isUnread, type ListChat } from "./list-chat";

const STATUS_FILTERS = ["running", "requires_action", "error", "waiting", "pending"] as const;
type StatusFilter = (typeof STATUS_FILTERS)[number];

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

const STATUS_WORDS: Readonly<Record<StatusFilter, string>> = {
  running: "Working",
  requires_action: "Needs you",
  error: "Failed",
  waiting: "Idle",
  pending: "Waiting for a worker",
};

interface FilterProps {
  filters: ListFilters;
  onChange: (filters: ListFilters) => void;
}

/** Filters of the list. `labels` are those of the chats that are loaded. */
export function FilterMenu({ filters, onChange, labels }: FilterProps & { labels: readonly string[] }) {
  const count = countFilters(filters);
  const toggleLabel = (label: string, on: boolean) =>
    onChange({ ...filters, labels: on ? [...filters.labels, label] : filters.labels.filter((one) => one !== label) });
  return (
    <Menu
      trigger={<IconButton icon={ListFilter} label={count > 0 ? `Filter, ${count} set` : "Filter"} className={classes(count > 0 && "is-on")} />}
      align="start"
    >
      <MenuHeading>Show only</MenuHeading>
      <MenuChoice keepOpen checked={filters.unread} onChecked={(unread) => onChange({ ...filters, unread })}>
        Unread
      </MenuChoice>
      {(Object.keys(STATUS_WORDS) as StatusFilter[]).map((status) => (
        <MenuChoice key={status} keepOpen checked={filters.status === status} onChecked={(on) => onChange({ ...filters, status: on ? status : null })}>
          {STATUS_WORDS[status]}
        </MenuChoice>
      ))}
      <MenuSeparator />
      <MenuChoice keepOpen checked={filters.source === "shared"} onChecked={(on) => onChange({ ...filters, source: on ? "shared" : null })}>
        Shared with me
      </MenuChoice>
      <MenuChoice keepOpen checked={filters.archived} onChecked={(archived) => onChange({ ...filters, archived })}>
        Archived
      </MenuChoice>
      {labels.length > 0 && (
        <>
          <MenuSeparator />
          <MenuHeading>Labels</MenuHeading>
          {labels.map((label) => (
            <MenuChoice key={label} keepOpen checked={filters.labels.includes(label)} onChecked={(on) => toggleLabel(label, on)}>
              {label.replace(":", ": ")}
            </MenuChoice>
          ))}
        </>
      )}
    </Menu>
  );
}

/** The filters that are set, each with a way to remove it. */
export function FilterChips({ filters, onChange }: FilterProps) {
  if (countFilters(filters) === 0) return null;
  return (
    <div className="sidebar-chips" role="group" aria-label="Filters">
      {filters.archived && (
        <Chip onRemove={() => onChange({ ...filters, archived: false })} removeLabel="Remove filter Archived">
          Archived
        </Chip>
      )}
      {filters.unread && (
        <Chip onRemove={() => onChange({ ...filters, unread: false })} removeLabel="Remove filter Unread">
          Unread
        </Chip>
      )}
      {filters.status !== null && (
        <Chip onRemove={() => onChange({ ...filters, status: null })} removeLabel={`Remove filter ${STATUS_WORDS[filters.status]}`}>
          {STATUS_WORDS[filters.status]}
        </Chip>
      )}
      {filters.source !== null && (
        <Chip onRemove={() => onChange({ ...filters, source: null })} removeLabel="Remove filter Shared">
          {filters.source === "shared" ? "Shared with me" : "Mine"}
        </Chip>
      )}
      {filters.labels.map((label) => (
        <Chip
          key={label}
          onRemove={() => onChange({ ...filters, labels: filters.labels.filter((one) => one !== label) })}
          removeLabel={`Remove filter ${label}`}
        >
          {label.replace(":", ": ")}
        </Chip>
      ))}
      <button type="button" className="ui-link" onClick={() => onChange(NO_FILTERS)}>
        Clear
      </button>
    </div>
  );
}

import { ListFilter } from "lucide-react";
import { Chip, classes, IconButton, Menu, MenuChoice, MenuHeading, MenuSeparator } from "@/components";
import { countFilters, type ListFilters, NO_FILTERS, type StatusFilter } from "./filters";

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
    <Menu trigger={<IconButton icon={ListFilter} label={count > 0 ? `Filter, ${count} set` : "Filter"} className={classes(count > 0 && "is-on")} />} align="start">
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
      {filters.archived && <Chip onRemove={() => onChange({ ...filters, archived: false })} removeLabel="Remove filter Archived">Archived</Chip>}
      {filters.unread && <Chip onRemove={() => onChange({ ...filters, unread: false })} removeLabel="Remove filter Unread">Unread</Chip>}
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
        <Chip key={label} onRemove={() => onChange({ ...filters, labels: filters.labels.filter((one) => one !== label) })} removeLabel={`Remove filter ${label}`}>
          {label.replace(":", ": ")}
        </Chip>
      ))}
      <button type="button" className="ui-link" onClick={() => onChange(NO_FILTERS)}>
        Clear
      </button>
    </div>
  );
}

/** What every page of the settings is made of: heading, sections, tables, and the state of a request. */
import { useMutation, type UseMutationResult, useQuery, useQueryClient, type UseQueryResult } from "@tanstack/react-query";
import { ChevronLeft } from "lucide-react";
import type { ReactNode } from "react";
import { Link } from "wouter";

import { queryKeys } from "@/api/queries";
import { Button, ErrorNote, errorWords, Field, Icon, Skeleton } from "@/components";
import { toast } from "@/platform/toasts";

/** On a phone the list of pages is a screen of its own. */
export const SETTINGS_PATH = "/settings";

interface PageProps {
  title: string;
  lead?: ReactNode;
  /** Buttons beside the heading. */
  end?: ReactNode;
  children: ReactNode;
}

export function SettingsPage({ title, lead, end, children }: PageProps) {
  return (
    <main className="settings-main" id="main" tabIndex={-1}>
      <div className="settings-column">
        <Link className="settings-back ui-link" href={SETTINGS_PATH}>
          <Icon of={ChevronLeft} />
          Settings
        </Link>
        <div className="settings-top">
          <div className="ui-grow">
            <h1>{title}</h1>
            {lead !== undefined && <p className="ui-lead">{lead}</p>}
          </div>
          {end}
        </div>
        {children}
      </div>
    </main>
  );
}

export function Section({ title, hint, end, children }: { title: string; hint?: ReactNode; end?: ReactNode; children: ReactNode }) {
  return (
    <section aria-label={title}>
      <div className="settings-heading">
        <h2>{title}</h2>
        {hint !== undefined && <span className="tone-muted">{hint}</span>}
        <span className="ui-grow" />
        {end}
      </div>
      {children}
    </section>
  );
}

/** Shows what was read, or that it is being read, or why it could not be. */
export function Loaded<T>({ query, children }: { query: UseQueryResult<T>; children: (value: T) => ReactNode }) {
  if (query.data !== undefined) return <>{children(query.data)}</>;
  if (query.error !== null) {
    return (
      <ErrorNote
        error={query.error}
        action={
          <Button size="sm" onClick={() => void query.refetch()}>
            Try again
          </Button>
        }
      />
    );
  }
  return (
    <div className="settings-card settings-padded">
      <Skeleton rows={4} />
    </div>
  );
}

/** A table in a card. `heads` that begin with ">" stand at the right; "" has no heading of its own. */
export function Table({ label, heads, children }: { label: string; heads: readonly string[]; children: ReactNode }) {
  return (
    <div className="settings-card settings-table-scroll" role="group" aria-label={label} tabIndex={0}>
      <table className="settings-table" aria-label={label}>
        <thead>
          <tr>
            {heads.map((head, place) => (
              <th key={`${place}${head}`} className={head.startsWith(">") ? "settings-right" : undefined} scope="col">
                {head === "" ? <span className="ui-screen-reader">Actions</span> : head.replace(/^>/, "")}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>{children}</tbody>
      </table>
    </div>
  );
}

/** A row of a card: a name, what it means, and a control at the right. */
export function SettingRow({ title, hint, children }: { title: ReactNode; hint?: ReactNode; children: ReactNode }) {
  return (
    <div className="settings-row">
      <div className="ui-grow">
        <div className="ui-strong">{title}</div>
        {hint !== undefined && <p className="tone-muted">{hint}</p>}
      </div>
      {children}
    </div>
  );
}

interface ChoiceProps<T extends string> {
  label: string;
  value: T;
  options: readonly (readonly [T, string])[];
  hint?: ReactNode;
  error?: ReactNode;
  onChange: (value: T) => void;
}

/** A field of a form with a list to choose from. */
export function Choice<T extends string>({ label, value, options, hint, error, onChange }: ChoiceProps<T>) {
  return (
    <Field label={label} hint={hint} error={error} wide>
      {(names) => (
        <select {...names} className="ui-select" value={value} onChange={(event) => onChange(event.target.value as T)}>
          {options.map(([one, text]) => (
            <option key={one} value={one}>
              {text}
            </option>
          ))}
        </select>
      )}
    </Field>
  );
}

interface LinesProps {
  label: string;
  hint: ReactNode;
  value: string;
  error: string | undefined;
  rows?: number;
  onChange: (value: string) => void;
}

/** A field of several lines that may be empty. */
export function Lines({ label, hint, value, error, rows = 3, onChange }: LinesProps) {
  return (
    <Field label={label} aside="optional" hint={hint} error={error} wide>
      {(names) => (
        <textarea {...names} className="ui-textarea" rows={rows} spellCheck={false} value={value} onChange={(event) => onChange(event.target.value)} />
      )}
    </Field>
  );
}

// Reading and changing what the settings show: queries by a name, lists read to a bounded end, saves.

export interface ListPage<T> {
  items: T[];
  has_more: boolean;
  next_cursor: string | null;
}

const PAGE = 200;
export const MAX_LISTED = 2000;

/** All items of a list, at most `MAX_LISTED`. */
export async function readAll<T>(read: (query: { limit: number; cursor?: string }) => Promise<ListPage<T>>): Promise<T[]> {
  const items: T[] = [];
  let cursor: string | null = null;
  do {
    const page: ListPage<T> = await read(cursor === null ? { limit: PAGE } : { limit: PAGE, cursor });
    items.push(...page.items);
    cursor = page.next_cursor;
  } while (cursor !== null && items.length < MAX_LISTED);
  return items;
}

/** Keys of the settings are their own; the models are one cache for the whole page. */
const keyOf = (name: readonly unknown[]): readonly unknown[] => (name[0] === queryKeys.models[0] ? queryKeys.models : queryKeys.settings(...name));

export function useResource<T>(name: readonly unknown[], read: () => Promise<T>): UseQueryResult<T> {
  return useQuery({ queryKey: keyOf(name), queryFn: read });
}

interface SaveOptions<T> {
  /** Resources to read again afterwards. */
  refresh: readonly (readonly unknown[])[];
  /** Said when it worked. */
  done?: string;
  /** Without it a failure is a toast; a form shows it itself. */
  quiet?: boolean;
  onDone?: (value: T) => void;
}

/** A change: reads the named resources again, says that it worked, and shows why it did not. */
export function useSave<A, T>(save: (argument: A) => Promise<T>, options: SaveOptions<T>): UseMutationResult<T, Error, A> {
  const client = useQueryClient();
  return useMutation<T, Error, A>({
    mutationFn: save,
    onSuccess: (value) => {
      for (const name of options.refresh) void client.invalidateQueries({ queryKey: keyOf(name) });
      if (options.done !== undefined) toast({ text: options.done, tone: "ok" });
      options.onDone?.(value);
    },
    onError: (error) => {
      if (options.quiet !== true) toast({ text: errorWords(error).text, tone: "danger" });
    },
  });
}

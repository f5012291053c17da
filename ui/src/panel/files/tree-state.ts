/** The tree of a workspace's files as far as it is loaded. Pure. Paths begin in the home directory. */
import type { components } from "@/api/schema";

export type Entry = components["schemas"]["WorkspaceEntry"];

export type LoadedDirectory =
  | { readonly state: "loading"; readonly entries: readonly Entry[] }
  | { readonly state: "failed"; readonly entries: readonly Entry[]; readonly error: unknown }
  | { readonly state: "ready"; readonly entries: readonly Entry[]; readonly isCut: boolean };

export interface TreeState {
  /** The absolute path of the home directory, once a directory was loaded. */
  readonly home: string | null;
  /** Where commands begin. */
  readonly directory: string | null;
  readonly directories: ReadonlyMap<string, LoadedDirectory>;
  readonly expanded: ReadonlySet<string>;
}

export const EMPTY_TREE: TreeState = { home: null, directory: null, directories: new Map(), expanded: new Set([""]) };

export interface TreeRow {
  readonly path: string;
  readonly name: string;
  /** From 1. */
  readonly level: number;
  readonly kind: "directory" | "file" | "other" | "note";
  readonly isLink: boolean;
  readonly isExpanded: boolean;
  readonly setSize: number;
  readonly position: number;
  /** Of a note: what is to be said in place of entries. */
  readonly error?: unknown;
  readonly title?: string;
}

function joinPath(directory: string, name: string): string {
  return directory === "" ? name : `${directory}/${name}`;
}

export function parentOf(path: string): string {
  return path.includes("/") ? path.slice(0, path.lastIndexOf("/")) : "";
}

/** A path from the home directory; null for one outside of it. */
export function relativePath(path: string, home: string | null): string | null {
  if (!path.startsWith("/")) return path.replace(/^\.\//, "").replace(/\/+$/, "");
  if (home === null) return null;
  if (path === home) return "";
  return path.startsWith(`${home}/`) ? path.slice(home.length + 1).replace(/\/+$/, "") : null;
}

export function ancestorsOf(path: string): readonly string[] {
  const names = path.split("/").slice(0, -1);
  return ["", ...names.map((_, index) => names.slice(0, index + 1).join("/"))];
}

export function withLoaded(state: TreeState, path: string, loaded: LoadedDirectory): TreeState {
  return { ...state, directories: new Map(state.directories).set(path, loaded) };
}

export function withExpanded(state: TreeState, paths: readonly string[], isExpanded: boolean): TreeState {
  const expanded = new Set(state.expanded);
  for (const path of paths) {
    if (isExpanded) expanded.add(path);
    else expanded.delete(path);
  }
  return { ...state, expanded };
}

function kindOf(entry: Entry): "directory" | "file" | "other" {
  const kind = entry.kind === "link" ? entry.target_kind : entry.kind;
  return kind === "directory" || kind === "file" ? kind : "other";
}

function titleOf(entry: Entry): string | undefined {
  if (entry.kind === "link") {
    const target = `Link to ${entry.target ?? "nothing"}`;
    return entry.target_kind == null ? `${target}, which cannot be read here` : target;
  }
  return entry.kind === "other" ? (entry.detail ?? "special file") : undefined;
}

/** The rows to show, from above. With a query: the loaded entries whose names contain it, and their directories. */
export function treeRows(state: TreeState, query: string): readonly TreeRow[] {
  const wanted = query.trim().toLowerCase();
  return wanted === "" ? rowsBelow(state, "", 1) : foundBelow(state, "", 1, wanted);
}

function rowsBelow(state: TreeState, directory: string, level: number): readonly TreeRow[] {
  const loaded = state.directories.get(directory);
  if (loaded === undefined) return [];
  const rows = loaded.entries.flatMap((entry, index) => {
    const row = rowOf(state, directory, level, entry, index, loaded.entries.length);
    return row.isExpanded ? [row, ...rowsBelow(state, row.path, level + 1)] : [row];
  });
  return [...rows, ...notes(loaded, directory, level)];
}

function rowOf(state: TreeState, directory: string, level: number, entry: Entry, index: number, setSize: number): TreeRow {
  const path = joinPath(directory, entry.name);
  const kind = kindOf(entry);
  const title = titleOf(entry);
  return {
    path,
    name: entry.name,
    level,
    kind,
    isLink: entry.kind === "link",
    isExpanded: kind === "directory" && state.expanded.has(path),
    setSize,
    position: index + 1,
    ...(title === undefined ? {} : { title }),
  };
}

function foundBelow(state: TreeState, directory: string, level: number, wanted: string): readonly TreeRow[] {
  const entries = state.directories.get(directory)?.entries ?? [];
  return entries.flatMap((entry, index) => {
    const row = rowOf(state, directory, level, entry, index, entries.length);
    const inside = row.kind === "directory" ? foundBelow(state, row.path, level + 1, wanted) : [];
    if (inside.length === 0 && !entry.name.toLowerCase().includes(wanted)) return [];
    return [{ ...row, isExpanded: inside.length > 0 }, ...inside];
  });
}

function notes(loaded: LoadedDirectory, directory: string, level: number): readonly TreeRow[] {
  const note = (name: string, error?: unknown): TreeRow => ({
    path: `${directory}\0${name}`,
    name,
    level,
    kind: "note",
    isLink: false,
    isExpanded: false,
    setSize: loaded.entries.length,
    position: loaded.entries.length,
    error,
  });
  if (loaded.state === "failed") return [note("This directory could not be read.", loaded.error)];
  if (loaded.state === "loading") return loaded.entries.length === 0 ? [note("Loading")] : [];
  if (loaded.isCut) return [note(`Only ${loaded.entries.length.toLocaleString("en")} entries are shown.`)];
  return loaded.entries.length === 0 ? [note("Empty")] : [];
}

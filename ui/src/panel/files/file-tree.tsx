/** The tree of files, for pointer and keyboard. One row takes the focus; arrows move it. */
import { ChevronRight, File, FileSymlink, Folder, FolderOpen, type LucideIcon } from "lucide-react";
import { type DragEvent, type KeyboardEvent, useCallback, useEffect, useMemo, useRef, useState } from "react";
import { api } from "@/api/client";
import { classes, errorWords, Icon } from "@/components";
import { type TreeItem, useTreeFocus } from "@/components/tree";
import { fileUrl } from "./file-content";
import { ancestorsOf, EMPTY_TREE, parentOf, relativePath, type TreeRow, type TreeState, withExpanded, withLoaded } from "./tree-state";

interface FileTreeProps {
  readonly chatId: string;
  readonly rows: readonly TreeRow[];
  /** The file that is shown. */
  readonly selected: string | null;
  readonly onOpen: (path: string) => void;
  readonly onToggle: (path: string, isExpanded: boolean) => void;
}

export function FileTree({ chatId, rows, selected, onOpen, onToggle }: FileTreeProps) {
  const items = useMemo(() => rows.filter((row) => row.kind !== "note").map(itemOf), [rows]);
  const { ref, stop, setFocused, press } = useTreeFocus<HTMLDivElement>(items, selected, onToggle);

  const act = (row: TreeRow) => {
    setFocused(row.path);
    if (row.kind === "directory") onToggle(row.path, !row.isExpanded);
    else if (row.kind === "file") onOpen(row.path);
  };

  const onKeyDown = (event: KeyboardEvent<HTMLDivElement>) => {
    const row = rows.find((one) => one.path === stop);
    if (row === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    const acts = event.key === "Enter" || event.key === " ";
    if (!acts && !press(event)) return;
    event.preventDefault();
    event.stopPropagation();
    if (acts) act(row);
  };

  return (
    <div className="files-tree" role="tree" aria-label="Files of the workspace" ref={ref} onKeyDown={onKeyDown}>
      {rows.map((row) =>
        row.kind === "note" ? (
          <TreeNote key={row.path} row={row} />
        ) : (
          <div
            key={row.path}
            role="treeitem"
            data-key={row.path}
            className={classes("files-row", row.kind === "other" && "is-off")}
            style={{ paddingLeft: indent(row.level) }}
            aria-level={row.level}
            aria-setsize={row.setSize}
            aria-posinset={row.position}
            aria-expanded={row.kind === "directory" ? row.isExpanded : undefined}
            aria-selected={row.path === selected}
            aria-disabled={row.kind === "other" ? true : undefined}
            title={row.title}
            tabIndex={row.path === stop ? 0 : -1}
            onClick={() => act(row)}
            draggable={row.kind === "file"}
            onDragStart={(event) => offerDownload(event, chatId, row)}
            onFocus={() => setFocused(row.path)}
          >
            {row.kind === "directory" ? <Icon of={ChevronRight} size="sm" className={row.isExpanded ? "is-open" : ""} /> : <i className="files-gap" />}
            <Icon of={iconOf(row)} size="sm" />
            <span>{row.name}</span>
          </div>
        ),
      )}
    </div>
  );
}

/** A file that is dragged out of the page is downloaded where it is dropped, in browsers that know how. */
function offerDownload(event: DragEvent, chatId: string, row: TreeRow): void {
  const url = new URL(fileUrl(chatId, row.path, { download: true }), location.href).href;
  event.dataTransfer.setData("DownloadURL", `application/octet-stream:${row.name.replaceAll(":", "_")}:${url}`);
  event.dataTransfer.setData("text/plain", row.path);
}

function TreeNote({ row }: { readonly row: TreeRow }) {
  const reason = row.error === undefined ? "" : ` ${errorWords(row.error).text}`;
  return (
    <div className="files-note" role="none" style={{ paddingLeft: indent(row.level) + 20 }}>
      {row.name}
      {reason}
    </div>
  );
}

const indent = (level: number): number => 8 + (level - 1) * 14;

function iconOf(row: TreeRow): LucideIcon {
  if (row.kind === "directory") return row.isExpanded ? FolderOpen : Folder;
  return row.isLink ? FileSymlink : File;
}

function itemOf(row: TreeRow): TreeItem {
  const isDirectory = row.kind === "directory";
  return { key: row.path, parentKey: row.level === 1 ? null : parentOf(row.path), name: row.name, hasChildren: isDirectory, isOpen: row.isExpanded };
}

// Loads directories of a chat's workspace when they are opened.

export interface Tree {
  readonly state: TreeState;
  /** Why the home directory could not be read. */
  readonly error: unknown;
  readonly toggle: (path: string, isExpanded: boolean) => void;
  /** Opens every directory above a path, which may be absolute. */
  readonly reveal: (path: string) => void;
  readonly refresh: () => void;
}

export function useTree(chatId: string): Tree {
  const [state, setState] = useState<TreeState>(EMPTY_TREE);
  const current = useRef(state);
  const controller = useRef<AbortController | null>(null);

  const change = useCallback((next: (state: TreeState) => TreeState) => {
    current.current = next(current.current);
    setState(current.current);
  }, []);

  const load = useCallback(
    async (path: string): Promise<void> => {
      const signal = (controller.current ??= new AbortController()).signal;
      const before = current.current.directories.get(path)?.entries ?? [];
      change((now) => withLoaded(now, path, { state: "loading", entries: before }));
      try {
        const read = (cursor?: string) =>
          api.GET("/api/v1/chats/{chat_id}/workspace/files", { path: { chat_id: chatId }, query: { path, limit: 200, cursor }, signal });
        let found = await read();
        const entries = [...found.items];
        while (found.next_cursor !== null) {
          found = await read(found.next_cursor);
          entries.push(...found.items);
        }
        change((now) => ({
          ...withLoaded(now, path, { state: "ready", entries, isCut: found.is_cut }),
          home: found.home,
          directory: found.directory,
        }));
      } catch (error) {
        if (!signal.aborted) change((now) => withLoaded(now, path, { state: "failed", entries: [], error }));
      }
    },
    [chatId, change],
  );

  const open = useCallback(
    async (paths: readonly string[]): Promise<void> => {
      change((now) => withExpanded(now, paths, true));
      await Promise.all(paths.filter((path) => current.current.directories.get(path)?.state !== "ready").map(load));
    },
    [change, load],
  );

  const reveal = useCallback(
    (path: string) => {
      const relative = relativePath(path, current.current.home);
      if (relative !== null && relative !== "") void open(ancestorsOf(relative));
    },
    [open],
  );

  useEffect(() => {
    void load("").then(() => {
      const { directory, home } = current.current;
      const start = directory === null ? null : relativePath(directory, home);
      if (start !== null && start !== "") void open([...ancestorsOf(start), start]);
    });
    return () => {
      controller.current?.abort();
      controller.current = null;
    };
  }, [load, open]);

  const toggle = useCallback(
    (path: string, isExpanded: boolean) => {
      if (isExpanded) void open([path]);
      else change((now) => withExpanded(now, [path], false));
    },
    [change, open],
  );

  const refresh = useCallback(() => {
    const loaded = [...current.current.directories.keys()].filter((path) => path === "" || current.current.expanded.has(path));
    for (const path of loaded) void load(path);
  }, [load]);

  const root = state.directories.get("");
  return { state, error: root?.state === "failed" ? root.error : null, toggle, reveal, refresh };
}

/** Loads directories of a chat's workspace when they are opened. */
import { useCallback, useEffect, useRef, useState } from "react";
import { api } from "@/api/client";
import { ancestorsOf, EMPTY_TREE, relativePath, type TreeState, withExpanded, withLoaded } from "./tree-state";

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

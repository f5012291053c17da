/** One file of the workspace, loaded piece by piece. */
import { useCallback, useEffect, useRef, useState } from "react";
import { type FileContent, loadPiece } from "./file-content";

export interface OpenFile {
  readonly content: FileContent | null;
  readonly error: unknown;
  readonly isLoading: boolean;
  readonly loadMore: () => void;
  readonly reload: () => void;
}

export function useFile(chatId: string, path: string): OpenFile {
  const [content, setContent] = useState<FileContent | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [isLoading, setLoading] = useState(true);
  const controller = useRef<AbortController | null>(null);

  const load = useCallback(
    (before: FileContent | null) => {
      controller.current?.abort();
      const made = new AbortController();
      controller.current = made;
      setLoading(true);
      setError(null);
      loadPiece(chatId, path, before, made.signal)
        .then(setContent, (reason: unknown) => {
          if (!made.signal.aborted) setError(reason);
        })
        .finally(() => {
          if (!made.signal.aborted) setLoading(false);
        });
    },
    [chatId, path],
  );

  useEffect(() => {
    // The component is keyed by its file: nothing of another one is left.
    // eslint-disable-next-line react-hooks/set-state-in-effect
    load(null);
    return () => controller.current?.abort();
  }, [load]);

  const loadMore = useCallback(() => load(content), [load, content]);
  const reload = useCallback(() => load(null), [load]);
  return { content, error, isLoading, loadMore, reload };
}

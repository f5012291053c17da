import { useMemo, useState } from "react";
import { errorWords } from "@/components";
import { toast } from "@/platform/toasts";
import { EXPAND_STEP, expandHunks, gapBefore, loadLines, matches } from "./expand";
import type { FileDiff } from "./git-diff";

const TIMEOUT_MS = 30_000;

export interface Expanded {
  readonly file: FileDiff;
  /** Lines that could be shown above a hunk. */
  readonly hiddenAbove: (index: number) => number;
  readonly expand: (index: number) => void;
}

/** The diff with unchanged lines around its hunks, which are loaded with the first press. */
export function useExpanded(chatId: string, path: string, file: FileDiff): Expanded {
  const [loaded, setLoaded] = useState<{ of: FileDiff; lines: readonly string[] } | null>(null);
  const [extra, setExtra] = useState<ReadonlyMap<number, number>>(new Map());
  const lines = loaded?.of === file ? loaded.lines : null;
  const shown = useMemo(() => (lines === null ? file : expandHunks(file, lines, extra)), [file, lines, extra]);
  const expand = (index: number) => {
    const more = (known: ReadonlyMap<number, number>) => new Map(known).set(index, (known.get(index) ?? 0) + EXPAND_STEP);
    if (lines !== null) {
      setExtra(more);
      return;
    }
    loadLines(chatId, path, AbortSignal.timeout(TIMEOUT_MS)).then(
      (found) => {
        if (found === null) toast("The file is too large to show more of it.");
        else if (!matches(file, found)) toast("The file has changed since. Refresh the changes.");
        else {
          setLoaded({ of: file, lines: found });
          setExtra(more(new Map()));
        }
      },
      (error: unknown) => toast({ text: errorWords(error).text, tone: "danger" }),
    );
  };
  const canExpand = file.kind !== "added" && file.kind !== "deleted";
  return { file: shown, hiddenAbove: (index) => (canExpand ? gapBefore(shown.hunks, index) : 0), expand };
}

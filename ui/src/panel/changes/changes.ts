/** What a chat has changed, by scope; read again when the chat changes. */
import { useQuery, type UseQueryResult } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";
import { api, type ApiError } from "@/api/client";
import { queryKeys } from "@/api/queries";
import type { components } from "@/api/schema";
import { useChatSelector } from "@/connection";
import { type FileDiff, parseGitDiff } from "@/text/git-diff";

export type Scope = "turn" | "chat" | "git";

/** A turn of many quick steps reads the diff once, not once a step. */
const SETTLE_MS = 800;

export function useChanges(chatId: string, scope: Scope): UseQueryResult<readonly RepositoryChanges[], ApiError> {
  const version = useChatSelector(chatId, (state) => state.version);
  const query = useQuery<readonly RepositoryChanges[], ApiError>({
    queryKey: queryKeys.changes(chatId, scope),
    queryFn: async ({ signal }) => {
      const reply = await api.GET("/api/v1/chats/{chat_id}/diff", { path: { chat_id: chatId }, query: { scope }, signal });
      return reply.repositories.map(readRepository);
    },
    structuralSharing: (before, now) => keepSame(before as readonly RepositoryChanges[] | undefined, now as readonly RepositoryChanges[]),
    staleTime: 0,
  });
  const { refetch } = query;
  const read = useRef(version);
  useEffect(() => {
    if (version === read.current) return;
    const timer = setTimeout(() => {
      read.current = version;
      void refetch();
    }, SETTLE_MS);
    return () => clearTimeout(timer);
  }, [version, refetch]);
  return query;
}

// What changed in one repository, read from its unified diff.

type ScopedDiff = components["schemas"]["ScopedDiff"];

export interface RepositoryChanges {
  readonly root: string;
  readonly branch: string;
  readonly base: string;
  /** The diff that `files` were read from. */
  readonly text: string;
  readonly files: readonly FileDiff[];
  /** Why there is no diff; empty if there is one. */
  readonly note: string;
}

export function readRepository(found: ScopedDiff): RepositoryChanges {
  const { files, note } = parseGitDiff(found.unified_diff);
  const omitted = found.omitted ?? "";
  return { root: found.repo_root, branch: found.branch, base: found.base, text: found.unified_diff, files, note: omitted === "" ? note : omitted };
}

/** Repositories whose diff is the same stay the same objects, so that their lines are not drawn again. */
export function keepSame(before: readonly RepositoryChanges[] | undefined, now: readonly RepositoryChanges[]): readonly RepositoryChanges[] {
  if (before === undefined) return now;
  const kept = now.map(
    (one) => before.find((old) => old.root === one.root && old.text === one.text && old.branch === one.branch && old.note === one.note) ?? one,
  );
  return kept.length === before.length && kept.every((one, index) => one === before[index]) ? before : kept;
}

// Which files a person has marked as seen: by chat, for the diff as it was then. Kept in this browser.

const KEY = "chatd.viewed";
const MAX_CHATS = 30;
const MAX_FILES = 300;

type Stored = Readonly<Record<string, readonly string[]>>;

/** Names a file with exactly these changes. */
export function changeMark(root: string, file: FileDiff): string {
  let hash = 5381;
  const add = (text: string) => {
    for (let at = 0; at < text.length; at += 1) hash = (Math.imul(hash, 33) ^ text.charCodeAt(at)) >>> 0;
  };
  add(`${root} ${file.kind} ${file.oldPath ?? ""} ${file.modes?.join() ?? ""}`);
  for (const hunk of file.hunks) for (const line of hunk.lines) add(`${line.type}${line.text}\n`);
  return `${file.path} ${hash.toString(36)}`;
}

export function withMark(stored: Stored, chatId: string, mark: string, isSeen: boolean): Stored {
  const others = Object.entries(stored).filter(([id]) => id !== chatId);
  const marks = (stored[chatId] ?? []).filter((one) => one !== mark);
  const mine = isSeen ? [...marks, mark].slice(-MAX_FILES) : marks;
  return Object.fromEntries([...others.slice(-(MAX_CHATS - 1)), [chatId, mine]]);
}

function readStored(): Stored {
  try {
    const value: unknown = JSON.parse(localStorage.getItem(KEY) ?? "{}");
    if (typeof value !== "object" || value === null) return {};
    return Object.fromEntries(Object.entries(value).filter((entry): entry is [string, string[]] => Array.isArray(entry[1])));
  } catch {
    return {};
  }
}

export function useViewed(chatId: string): readonly [ReadonlySet<string>, (mark: string, isSeen: boolean) => void] {
  const [stored, setStored] = useState(readStored);
  const set = (mark: string, isSeen: boolean) => {
    const next = withMark(readStored(), chatId, mark, isSeen);
    setStored(next);
    try {
      localStorage.setItem(KEY, JSON.stringify(next));
    } catch {
      // Without storage the mark holds until the tab is closed.
    }
  };
  return [new Set(stored[chatId] ?? []), set];
}

// Finds the file that another part of the page asks for, in the scope where it has changed.

interface FoundFile {
  readonly root: string;
  readonly path: string;
}

/** By its path in the workspace, which may be absolute, or relative to the repository or to the home directory. */
export function findFile(repositories: readonly RepositoryChanges[], wanted: string): FoundFile | null {
  const asked = wanted.replace(/^(\.\/|~\/)+/, "");
  const files = repositories.flatMap(({ root, files: changed }) => changed.map(({ path }) => ({ root, path })));
  const isSame = ({ root, path }: FoundFile) => [path, joined(root, path)].some((one) => one === asked || one.endsWith(`/${asked}`));
  return files.find(isSame) ?? files.find(({ path }) => asked.endsWith(`/${path}`)) ?? null;
}

function joined(root: string, path: string): string {
  return root === "" || root === "." ? path : `${root.replace(/\/$/, "")}/${path}`;
}

/** Where to look when a scope does not have the file: a wider one. */
export function nextScope(scope: Scope): Scope | null {
  return scope === "turn" ? "chat" : scope === "chat" ? "git" : null;
}

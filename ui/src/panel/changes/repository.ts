/** What changed in one repository, read from its unified diff. */
import type { components } from "@/api/schema";
import { type FileDiff, parseGitDiff } from "./git-diff";

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
  const kept = now.map((one) => before.find((old) => old.root === one.root && old.text === one.text && old.branch === one.branch && old.note === one.note) ?? one);
  return kept.length === before.length && kept.every((one, index) => one === before[index]) ? before : kept;
}

export function countLines(repositories: readonly RepositoryChanges[]): { added: number; removed: number } {
  const files = repositories.flatMap((repository) => repository.files);
  return {
    added: files.reduce((sum, file) => sum + file.added, 0),
    removed: files.reduce((sum, file) => sum + file.removed, 0),
  };
}

/** What changed in one repository, read from its unified diff. */
import type { FileDiff } from "./git-diff";

export interface RepositoryChanges {
  readonly root: string;
  readonly branch: string;
  readonly files: readonly FileDiff[];
  /** Why there is no diff; empty if there is one. */
  readonly note: string;
}

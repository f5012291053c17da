/** Finds the file that another part of the page asks for, in the scope where it has changed. */
import type { RepositoryChanges } from "./repository";
import type { Scope } from "./use-changes";

export interface FoundFile {
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

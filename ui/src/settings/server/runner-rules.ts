/** How runners, their tokens and the builds that wait for them are said. Pure. */
import type { components } from "@/api/schema";
import type { Tone } from "@/components";
import { plural } from "@/platform/words";

export type Runner = components["schemas"]["RunnerReply"];
export type RunnerToken = components["schemas"]["RunnerTokenReply"];

/** Where the commands keep the token. */
export const TOKEN_FILE = "~/.chatd-runner-token";

export interface Command {
  readonly label: string;
  readonly text: string;
}

/** What starts a runner on its machine. */
export function startCommands(server: string, token: string): readonly Command[] {
  return [
    { label: "Install chatd", text: "pip install chatd" },
    { label: "Keep the token", text: `(umask 077; printf %s '${token}' > ${TOKEN_FILE})` },
    { label: "Start the runner", text: `chatd runner start --server ${server} --token-file ${TOKEN_FILE}` },
  ];
}

export interface RunnerMark {
  readonly word: string;
  readonly tone: Tone | undefined;
}

/** Whether it is there, and whether it takes work. */
export function marksOf(runner: Runner): readonly RunnerMark[] {
  const marks: RunnerMark[] = [runner.connected ? { word: "connected", tone: "ok" } : { word: "not connected", tone: "danger" }];
  if (runner.draining) marks.push({ word: "drained", tone: "warn" });
  else if (isFull(runner)) marks.push({ word: "full", tone: "warn" });
  return marks;
}

export const isFull = (runner: Runner): boolean => runner.capacity > 0 && runner.running >= runner.capacity;

/** "build", or whose it is if it has no pool. */
export function poolText(runner: Runner): string {
  if (runner.builtin) return "a server's own";
  return runner.owner_id === null ? runner.pool : `of ${runner.owner ?? "a deleted user"}`;
}

/** "sandbox (bwrap)", "container (runsc, Podman 5.4)". */
export function offerText(offer: Runner["backends"][number]): string {
  const facts = [offer.isolation, offer.detail].filter(Boolean).join(", ");
  return facts === "" ? offer.kind : `${offer.kind} (${facts})`;
}

/** "3", "3 of 8". */
export const loadText = (runner: Runner): string => (runner.capacity === 0 ? String(runner.running) : `${runner.running} of ${runner.capacity}`);

/** What an administrator should look at. */
export function problemsOf(runner: Runner): readonly string[] {
  const found = runner.version_gap === null ? [] : [runner.version_gap];
  if (runner.orphans.length === 0) return found;
  const which = plural(runner.orphans.length, "workspace");
  return [...found, `It has ${which} that the database does not know: ${runner.orphans.slice(0, 3).join(", ")}${runner.orphans.length > 3 ? ", …" : ""}.`];
}

/** Null while it can be removed, else why not. */
export function whyNotRemovable(runner: Runner): string | null {
  if (runner.connected) return "It is connected.";
  if (runner.workspace_count > 0) return `It has ${plural(runner.workspace_count, "workspace")}.`;
  return null;
}

/** Whether any runner has been started with a token. */
export const hasOwnRunners = (runners: readonly Runner[]): boolean => runners.some((runner) => runner.token_id !== null);

const POOL = /^[a-z0-9]+(-[a-z0-9]+)*$/;
const MAX_POOL_CHARS = 32;

/** Null if it is the name of a pool, else what is wrong. */
export function poolError(text: string): string | null {
  if (text.length > MAX_POOL_CHARS) return `At most ${MAX_POOL_CHARS} characters.`;
  return POOL.test(text) ? null : "Small letters, digits and single dashes, such as build or gpu-1.";
}

/** What a workspace is doing, from its last build. Pure. */
import type { components } from "@/api/schema";
import type { Status } from "@/components";
import { durationText } from "@/platform/words";

type Schemas = components["schemas"];
export type Workspace = Schemas["WorkspaceReply"];
export type Build = Schemas["BuildReply"];
export type LogLine = Schemas["BuildLogReply"];

interface WorkspaceState {
  readonly status: Status;
  readonly word: string;
  readonly canStart: boolean;
  readonly canStop: boolean;
  /** A build is under way. */
  readonly isBusy: boolean;
}

const ACTIVE: ReadonlySet<Build["status"]> = new Set(["pending", "running", "canceling"]);

export const isActive = (build: Build | null): boolean => build !== null && ACTIVE.has(build.status);

const VERBS = {
  start: { now: "Starting", done: "Running", noun: "Start" },
  stop: { now: "Stopping", done: "Stopped", noun: "Stop" },
  delete: { now: "Deleting", done: "Deleted", noun: "Deletion" },
} as const;

export function stateOf(workspace: Workspace): WorkspaceState {
  const build = workspace.latest_build;
  if (workspace.deleted) return { status: "stopped", word: "Deleted", canStart: false, canStop: false, isBusy: false };
  if (build === null) return { status: "pending", word: "Not built yet", canStart: true, canStop: false, isBusy: false };
  const verb = VERBS[build.transition];
  if (isActive(build)) {
    return {
      status: build.status === "pending" ? "pending" : "running",
      word: build.status === "canceling" ? "Canceling" : verb.now,
      canStart: false,
      canStop: false,
      isBusy: true,
    };
  }
  if (build.status === "failed" || build.status === "canceled") {
    return {
      status: build.status === "failed" ? "error" : "stopped",
      word: `${verb.noun} ${build.status}`,
      canStart: true,
      canStop: build.transition !== "start",
      isBusy: false,
    };
  }
  const isUp = build.transition === "start";
  return { status: isUp ? "done" : "stopped", word: isUp ? upWord(workspace) : verb.done, canStart: !isUp, canStop: isUp, isBusy: false };
}

function upWord(workspace: Workspace): string {
  const agent = workspace.agents[0];
  if (agent === undefined || agent.status === "connected") return "Running";
  return agent.status === "connecting" ? "Running, agent connects" : "Running, agent not reached";
}

export function buildText(build: Build): string {
  const verb = VERBS[build.transition];
  if (build.status === "succeeded") return verb.done === "Running" ? "Started" : verb.done;
  if (build.status === "failed") return `${verb.noun} failed`;
  if (build.status === "canceled") return `${verb.noun} canceled`;
  return build.status === "canceling" ? "Canceling" : verb.now;
}

export function buildMs(build: Build): number | null {
  if (build.started_at == null || build.completed_at == null) return null;
  return Math.max(0, Date.parse(build.completed_at) - Date.parse(build.started_at));
}

/** "2 GiB", "512 MiB". */
export function bytesText(bytes: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let [value, unit] = [bytes, 0];
  while (value >= 1024 && unit < units.length - 1) [value, unit] = [value / 1024, unit + 1];
  return `${Number(value.toFixed(value < 10 ? 1 : 0))} ${units[unit] ?? "B"}`;
}

/** What a person wants to know about it, as name and value. */
export function factsOf(workspace: Workspace, template: string | null): readonly (readonly [string, string])[] {
  const { limits } = workspace;
  const facts: (readonly [string, string | null])[] = [
    ["Waits", workspace.latest_build?.waiting_for ?? null],
    ["Template", template],
    ["Isolation", workspace.isolation ?? null],
    ["Network", workspace.network == null ? null : { none: "none", allow: "named hosts", full: "full" }[workspace.network]],
    ["Directory", workspace.directory ?? null],
    ["Memory", limits?.memory_bytes == null ? null : bytesText(limits.memory_bytes)],
    ["Disk", limits?.disk_bytes == null ? null : bytesText(limits.disk_bytes)],
    ["Processes", limits?.processes == null ? null : limits.processes.toLocaleString("en")],
    ["Stops", workspace.deadline != null || workspace.ttl_s > 0 ? null : "never by itself"],
  ];
  return facts.filter((fact): fact is readonly [string, string] => fact[1] !== null && fact[1] !== "");
}

export function deadlineText(deadline: string, now: number): string {
  const left = Date.parse(deadline) - now;
  return left <= 0 ? "now, unless it is used" : `in ${durationText(left)}, unless it is used`;
}

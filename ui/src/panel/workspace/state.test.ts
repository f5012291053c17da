import { describe, expect, it } from "vitest";
import { bytesText, type Build, deadlineText, factsOf, stateOf, type Workspace } from "./state";
import { MAX_LINES, withLine } from "./use-build-log";

const AT = "2026-11-17T12:00:00Z";

function build(transition: Build["transition"], status: Build["status"]): Build {
  return { id: "b", workspace_id: "w", build_number: 1, transition, status, template_version_id: "v", parameters: {}, initiator_id: "u", reason: "initiator", attempt: 1, created_at: AT };
}

function workspace(latest: Build | null, given: Partial<Workspace> = {}): Workspace {
  return { id: "w", owner_id: "u", template_id: "t", name: "demo-1", deleted: false, ttl_s: 3600, created_at: AT, last_used_at: AT, latest_build: latest, agents: [], ...given };
}

describe("the state of a workspace", () => {
  it("follows from its last build", () => {
    const words = [
      stateOf(workspace(null)),
      stateOf(workspace(build("start", "running"))),
      stateOf(workspace(build("start", "succeeded"))),
      stateOf(workspace(build("stop", "succeeded"))),
      stateOf(workspace(build("start", "failed"))),
      stateOf(workspace(build("delete", "succeeded"), { deleted: true })),
    ].map((state) => [state.word, state.canStart, state.canStop, state.isBusy]);
    expect(words).toEqual([
      ["Not built yet", true, false, false],
      ["Starting", false, false, true],
      ["Running", false, true, false],
      ["Stopped", true, false, false],
      ["Start failed", true, false, false],
      ["Deleted", false, false, false],
    ]);
  });

  it("leaves out facts that are not known", () => {
    expect(factsOf(workspace(null), null)).toEqual([]);
    const facts = factsOf(workspace(null, { network: "none", isolation: "sandbox", limits: { memory_bytes: 2 ** 31, disk_bytes: 10 * 2 ** 30, processes: 512 } }), "Demo");
    expect(Object.fromEntries(facts)).toEqual({ Template: "Demo", Isolation: "sandbox", Network: "none", Memory: "2 GiB", Disk: "10 GiB", Processes: "512" });
  });

  it("writes sizes and deadlines in words", () => {
    expect([bytesText(900), bytesText(1536), bytesText(2 ** 40)]).toEqual(["900 B", "1.5 KiB", "1 TiB"]);
    expect(deadlineText("2026-11-17T13:05:00Z", Date.parse(AT))).toBe("in 1 h 5 m, unless it is used");
  });
});

describe("the log of a build", () => {
  const line = (id: number) => ({ id, created_at: AT, stage: "", level: "info" as const, output: `line ${id}` });

  it("takes a line once, also when the stream repeats it", () => {
    const empty = { lines: [], dropped: 0, isFollowing: true, error: null };
    const log = [1, 2, 2, 3].map(line).reduce(withLine, empty);
    expect(log.lines.map((one) => one.id)).toEqual([1, 2, 3]);
  });

  it("keeps the newest lines of a very long log", () => {
    const full = { lines: Array.from({ length: MAX_LINES }, (_, index) => line(index)), dropped: 0, isFollowing: true, error: null };
    const log = withLine(full, line(MAX_LINES));
    expect([log.lines.length, log.lines[0]?.id, log.dropped]).toEqual([MAX_LINES, 1, 1]);
  });
});

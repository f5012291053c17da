import { describe, expect, it } from "vitest";
import {
  hasOwnRunners,
  isFull,
  loadText,
  marksOf,
  offerText,
  poolError,
  poolText,
  problemsOf,
  type Runner,
  startCommands,
  whyNotRemovable,
} from "./runner-rules";

const AT = "2026-11-18T04:00:00Z";

function runner(fields: Partial<Runner> = {}): Runner {
  return {
    id: "r1",
    name: "build-1",
    pool: "build",
    labels: [],
    backends: [{ kind: "container" }],
    capacity: 0,
    running: 0,
    workspace_count: 0,
    version: "0.1.0",
    os: "linux",
    arch: "x86_64",
    connected: true,
    connected_at: AT,
    seen_at: AT,
    draining: false,
    builtin: false,
    owner_id: null,
    owner: null,
    token_id: "t1",
    token: "rack 3",
    orphans: [],
    version_gap: null,
    ...fields,
  };
}

const words = (one: Runner) => marksOf(one).map((mark) => mark.word);

describe("a runner", () => {
  it("is connected or not, and drained or full", () => {
    expect(words(runner())).toEqual(["connected"]);
    expect(words(runner({ connected: false }))).toEqual(["not connected"]);
    expect(words(runner({ capacity: 2, running: 2 }))).toEqual(["connected", "full"]);
    expect(words(runner({ capacity: 2, running: 2, draining: true }))).toEqual(["connected", "drained"]);
    expect(isFull(runner({ capacity: 0, running: 100 }))).toBe(false);
  });

  it("belongs to a pool, to a server or to a user", () => {
    expect(poolText(runner())).toBe("build");
    expect(poolText(runner({ builtin: true, pool: "", token_id: null }))).toBe("a server's own");
    expect(poolText(runner({ owner_id: "u", owner: "ada", pool: "", token_id: null }))).toBe("of ada");
    expect(poolText(runner({ owner_id: "u", owner: null, pool: "", token_id: null }))).toBe("of a deleted user");
    expect(hasOwnRunners([runner({ builtin: true, token_id: null })])).toBe(false);
    expect(hasOwnRunners([runner()])).toBe(true);
  });

  it("says how it isolates workspaces and how many it runs", () => {
    expect(offerText({ kind: "sandbox", isolation: "bwrap" })).toBe("sandbox (bwrap)");
    expect(offerText({ kind: "container", isolation: "runsc", detail: "Podman 5.4" })).toBe("container (runsc, Podman 5.4)");
    expect(offerText({ kind: "machine" })).toBe("machine");
    expect(loadText(runner({ running: 3 }))).toBe("3");
    expect(loadText(runner({ running: 3, capacity: 8 }))).toBe("3 of 8");
  });

  it("shows a version that does not fit, and orphans, of many only the first", () => {
    expect(problemsOf(runner())).toEqual([]);
    const [gap, orphans] = problemsOf(runner({ version_gap: "Upgrade the runner.", orphans: ["a", "b", "c", "d"] }));
    expect(gap).toBe("Upgrade the runner.");
    expect(orphans).toBe("It has 4 workspaces that the database does not know: a, b, c, ….");
    expect(problemsOf(runner({ orphans: ["a"] }))).toEqual(["It has 1 workspace that the database does not know: a."]);
  });

  it("can be removed only if it is gone and empty", () => {
    expect(whyNotRemovable(runner())).toBe("It is connected.");
    expect(whyNotRemovable(runner({ connected: false, workspace_count: 2 }))).toBe("It has 2 workspaces.");
    expect(whyNotRemovable(runner({ connected: false }))).toBeNull();
  });
});

describe("a token", () => {
  it("comes with the three commands that start a runner", () => {
    const [install, keep, start] = startCommands("https://chat.example", "chatd_runner_x");
    expect(install?.text).toBe("pip install chatd");
    expect(keep?.text).toBe("(umask 077; printf %s 'chatd_runner_x' > ~/.chatd-runner-token)");
    expect(start?.text).toBe("chatd runner start --server https://chat.example --token-file ~/.chatd-runner-token");
  });

  it("names a pool of small letters, digits and dashes", () => {
    for (const name of ["build", "gpu-1", "a"]) expect(poolError(name)).toBeNull();
    for (const name of ["", "Build", "a--b", "-a", "a b", "x".repeat(33)]) expect(poolError(name)).not.toBeNull();
  });
});

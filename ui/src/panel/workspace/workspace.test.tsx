import { render, screen } from "@testing-library/react";
import { describe, expect, it } from "vitest";
import type { ChatReply } from "@/connection";
import { EventReader, MAX_LINES, withLine } from "./build-log";
import { type Build, bytesText, deadlineText, factsOf, stateOf, type Workspace } from "./state";
import { WorkspaceMcpServers } from "./workspace-tab";

const AT = "2026-11-17T12:00:00Z";

function build(transition: Build["transition"], status: Build["status"]): Build {
  return {
    id: "b",
    workspace_id: "w",
    build_number: 1,
    transition,
    status,
    template_version_id: "v",
    parameters: {},
    initiator_id: "u",
    reason: "initiator",
    attempt: 1,
    created_at: AT,
  };
}

function workspace(latest: Build | null, given: Partial<Workspace> = {}): Workspace {
  return {
    id: "w",
    owner_id: "u",
    template_id: "t",
    name: "demo-1",
    deleted: false,
    ttl_s: 3600,
    created_at: AT,
    last_used_at: AT,
    latest_build: latest,
    agents: [],
    ...given,
  };
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
    const facts = factsOf(
      workspace(null, { network: "none", isolation: "sandbox", limits: { memory_bytes: 2 ** 31, disk_bytes: 10 * 2 ** 30, processes: 512 } }),
      "Demo",
    );
    expect(Object.fromEntries(facts)).toEqual({ Template: "Demo", Isolation: "sandbox", Network: "none", Memory: "2 GiB", Disk: "10 GiB", Processes: "512" });
  });

  it("says what a pending build waits for", () => {
    const pending = { ...build("start", "pending"), waiting_for: "The runner north is not connected." };
    expect(factsOf(workspace(pending), null)).toEqual([["Waits", "The runner north is not connected."]]);
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

const CHAT = { id: "c" } as ChatReply;

describe("the MCP servers of a workspace", () => {
  it("are shown with their tools, or with why they cannot be used", () => {
    const servers = [
      { name: "linear", tools: 12 },
      { name: "broken", tools: 0, error: "npx was not found" },
    ];
    render(<WorkspaceMcpServers chat={{ ...CHAT, workspace_mcp_servers: servers }} />);
    expect(screen.getByText("linear").closest("li")?.textContent).toBe("linear12 tools");
    expect(screen.getByText("broken").closest("li")?.textContent).toBe("brokennpx was not found");
  });

  it("are left out if there are none", () => {
    const { container } = render(<WorkspaceMcpServers chat={CHAT} />);
    expect(container.textContent).toBe("");
  });
});

const STREAM = 'retry: 1000\n\ndata: {"a":1}\nid: 7\n\n: keep-alive\n\nevent: build\ndata: first\ndata: second\n\n';

describe("a stream of events", () => {
  it("gives names, ids and data of several lines", () => {
    expect(new EventReader().push(STREAM)).toEqual([
      { event: "message", data: '{"a":1}', id: "7" },
      { event: "build", data: "first\nsecond", id: null },
    ]);
  });

  it("gives the same events however the text is cut", () => {
    const reader = new EventReader();
    expect(Array.from(STREAM).flatMap((char) => reader.push(char))).toEqual(new EventReader().push(STREAM));
  });

  it("keeps an event back until it is complete", () => {
    const reader = new EventReader();
    expect(reader.push("data: half")).toEqual([]);
    expect(reader.push("\n\n")).toEqual([{ event: "message", data: "half", id: null }]);
  });
});

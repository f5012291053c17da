import { render, screen } from "@testing-library/react";
import { describe, expect, it } from "vitest";
import type { ChatReply } from "@/connection";
import { WorkspaceMcpServers } from "./mcp-servers";

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

import { describe, expect, it } from "vitest";
import { connectionWords, isUsed, type McpServer, withServer } from "./queries";

const connection = { state: "ready" as const, reason: "", connected_at: null, expires_at: null };
const server = (id: string, availability: McpServer["availability"]): McpServer => ({
  id,
  slug: id,
  display_name: id,
  description: "",
  availability,
  auth: "none",
  allow_in_plan_mode: false,
  connection,
});
const servers = [server("forced", "force_on"), server("on", "default_on"), server("off", "default_off")];

describe("the MCP servers of a chat", () => {
  it("are the forced ones and those that are on by default, until others are chosen", () => {
    expect(servers.filter((one) => isUsed(one, null)).map((one) => one.id)).toEqual(["forced", "on"]);
    expect(servers.filter((one) => isUsed(one, ["off"])).map((one) => one.id)).toEqual(["forced", "off"]);
  });

  it("are chosen as a whole, without the forced ones", () => {
    expect(withServer(servers, null, "off", true)).toEqual(["on", "off"]);
    expect(withServer(servers, ["on", "off"], "on", false)).toEqual(["off"]);
  });

  it("say why a connection ended", () => {
    expect(connectionWords({ ...connection, state: "failed", reason: "the grant was revoked" })).toBe("Connection ended: the grant was revoked");
  });
});

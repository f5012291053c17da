import { describe, expect, it } from "vitest";
import { bodyOfDraft, headersOf, NEW_SERVER, slugOf } from "./mcp-draft";

describe("an MCP server", () => {
  it("is named by its slug, which is made of its name", () => {
    expect([slugOf("My Tracker!"), slugOf("  ")]).toEqual(["my-tracker", ""]);
    expect(bodyOfDraft({ ...NEW_SERVER, name: "My Tracker", url: "https://mcp.example.com/mcp" })).toMatchObject({ slug: "my-tracker", display_name: "My Tracker", auth: "none" });
  });

  it("sends only the secrets of its kind of auth, and none that was not entered", () => {
    const given = { ...NEW_SERVER, name: "x", key: "k-1", keyHeader: "X-Key", headers: "X-Team: a" };
    expect(bodyOfDraft({ ...given, auth: "api_key" })).toMatchObject({ api_key: "k-1", api_key_header: "X-Key" });
    expect(bodyOfDraft({ ...given, auth: "api_key" })).not.toHaveProperty("headers");
    expect(bodyOfDraft({ ...given, auth: "custom_headers" })).toMatchObject({ headers: { "X-Team": "a" } });
    expect(bodyOfDraft({ ...given, auth: "api_key", key: "" })).not.toHaveProperty("api_key");
    expect(bodyOfDraft({ ...given, auth: "oauth2" })).not.toHaveProperty("oauth");
  });

  it("has lists of tools, one a line", () => {
    expect(bodyOfDraft({ ...NEW_SERVER, name: "x", allow: "list_issues\n\n get_issue " }).allow).toEqual(["list_issues", "get_issue"]);
  });

  it("refuses a line that is no header", () => {
    expect(headersOf("Authorization: Bearer a:b")).toEqual({ Authorization: "Bearer a:b" });
    expect(() => headersOf("nothing")).toThrow("“nothing” is no header");
  });
});

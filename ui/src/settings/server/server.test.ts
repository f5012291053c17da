import { describe, expect, it } from "vitest";
import type { Model } from "@/api/queries";
import { exportPath, NO_FILTERS, queryOf, readFilters, writeFilters } from "./audit";
import { bodyOfDraft, headersOf, NEW_SERVER, slugOf } from "./mcp-draft";
import { contextText } from "./models";

const iso = (...day: [number, number, number]) => new Date(...day).toISOString();

describe("the filters of the audit log", () => {
  it("are the same after they were in an address", () => {
    const filters = { ...NO_FILTERS, actor: "u1", actorName: "Ada & Co", from: "2026-11-01", text: "price = 1" };
    expect(readFilters(writeFilters(filters))).toEqual(filters);
    expect(writeFilters(NO_FILTERS)).toBe("");
  });

  it.each([
    [NO_FILTERS, {}],
    [
      { ...NO_FILTERS, actor: "u1", kind: "chat", object: "c1", text: "  read " },
      { actor_id: "u1", object_type: "chat", object_id: "c1", q: "read" },
    ],
    [{ ...NO_FILTERS, object: "c1" }, {}],
    [
      { ...NO_FILTERS, from: "2026-11-30", to: "2026-11-30" },
      { since: iso(2026, 10, 30), until: iso(2026, 11, 1) },
    ],
    [{ ...NO_FILTERS, from: "soon" }, {}],
  ])("ask the server for whole days of this time zone, and leave out what is empty", (filters, query) => {
    expect(queryOf(filters)).toEqual(query);
  });

  it("name the file that has what is shown", () => {
    expect(exportPath(NO_FILTERS)).toBe("/api/v1/audit/export.csv");
    expect(exportPath({ ...NO_FILTERS, kind: "user", text: "a&b" })).toBe("/api/v1/audit/export.csv?object_type=user&q=a%26b");
  });
});

describe("an MCP server", () => {
  it("is named by its slug, which is made of its name", () => {
    expect([slugOf("My Tracker!"), slugOf("  ")]).toEqual(["my-tracker", ""]);
    expect(bodyOfDraft({ ...NEW_SERVER, name: "My Tracker", url: "https://mcp.example.com/mcp" })).toMatchObject({
      slug: "my-tracker",
      display_name: "My Tracker",
      auth: "none",
    });
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

describe("the context window of a model", () => {
  it.each([
    [{}, ""],
    [{ capabilities: { context_limit: 64_000 } }, "64k"],
    [{ capabilities: { context_limit: 8_000 }, learned_context: { tokens: 8_000, is_bound: false } }, "8k (learned)"],
    [{ learned_context: { tokens: 9_000, is_bound: true } }, "< 9k (learned)"],
    [{ context_limit: 4_000, capabilities: { context_limit: 64_000 } }, "4k"],
  ])("of %j is shown as %j", (fields: Partial<Model>, text) => {
    expect(contextText({ capabilities: {}, ...fields } as Model)).toBe(text);
  });
});

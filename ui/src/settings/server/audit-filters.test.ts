import { describe, expect, it } from "vitest";
import { exportPath, NO_FILTERS, queryOf, readFilters, writeFilters } from "./audit-filters";

const iso = (...day: [number, number, number]) => new Date(...day).toISOString();

describe("the filters of the audit log", () => {
  it("are the same after they were in an address", () => {
    const filters = { ...NO_FILTERS, actor: "u1", actorName: "Ada & Co", from: "2026-11-01", text: "price = 1" };
    expect(readFilters(writeFilters(filters))).toEqual(filters);
    expect(writeFilters(NO_FILTERS)).toBe("");
  });

  it.each([
    [NO_FILTERS, {}],
    [{ ...NO_FILTERS, actor: "u1", kind: "chat", object: "c1", text: "  read " }, { actor_id: "u1", object_type: "chat", object_id: "c1", q: "read" }],
    [{ ...NO_FILTERS, object: "c1" }, {}],
    [{ ...NO_FILTERS, from: "2026-11-30", to: "2026-11-30" }, { since: iso(2026, 10, 30), until: iso(2026, 11, 1) }],
    [{ ...NO_FILTERS, from: "soon" }, {}],
  ])("ask the server for whole days of this time zone, and leave out what is empty", (filters, query) => {
    expect(queryOf(filters)).toEqual(query);
  });

  it("name the file that has what is shown", () => {
    expect(exportPath(NO_FILTERS)).toBe("/api/v1/audit/export.csv");
    expect(exportPath({ ...NO_FILTERS, kind: "user", text: "a&b" })).toBe("/api/v1/audit/export.csv?object_type=user&q=a%26b");
  });
});

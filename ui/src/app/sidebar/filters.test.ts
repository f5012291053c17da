import { describe, expect, it } from "vitest";
import { countFilters, NO_FILTERS, readFilters, writeFilters } from "./filters";

describe("filters in the address", () => {
  it("reads what it wrote, and keeps the rest of the query", () => {
    const filters = { archived: true, status: "error" as const, labels: ["team:blue", "kind:bug"], unread: true, source: "shared" as const };
    const search = writeFilters("panel=runs&status=waiting", filters);
    expect(new URLSearchParams(search).get("panel")).toBe("runs");
    expect(readFilters(search)).toEqual(filters);
    expect(countFilters(filters)).toBe(6);
  });

  it("leaves unknown values out", () => {
    expect(readFilters("status=exploded&source=all&label=nocolon&archived=1")).toEqual(NO_FILTERS);
  });

  it("writes nothing when no filter is set", () => {
    expect(writeFilters("archived=true&label=a:b", NO_FILTERS)).toBe("");
  });
});

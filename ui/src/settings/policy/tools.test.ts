import { describe, expect, it } from "vitest";
import { argsOf, OWN_TOOLS, PRESETS } from "./tools";

describe("a preset", () => {
  it("names only tools that there are, or patterns", () => {
    const names = new Set(OWN_TOOLS.map((tool) => tool.name));
    const unknown = PRESETS.flatMap((preset) => preset.rules).filter((rule) => !rule.tool.includes("*") && !names.has(rule.tool));
    expect(unknown).toEqual([]);
  });

  it("that only reads denies, so that nothing can loosen it", () => {
    expect(new Set(PRESETS.find((preset) => preset.name === "Read only")?.rules.map((rule) => rule.action))).toEqual(new Set(["deny"]));
  });
});

describe("the arguments of a try", () => {
  it.each([
    ["execute", "git push", { command: "git push" }],
    ["execute", ' {"command": "ls", "workdir": "/srv"}', { command: "ls", workdir: "/srv" }],
    ["read_file", '{"path": "a"}', { path: "a" }],
    ["list_agents", " ", {}],
  ])("of %s are a command line or JSON", (tool, text, args) => {
    expect(argsOf(tool, text)).toEqual(args);
  });

  it.each(["a", "[]", "1"])("that are no object are refused: %s", (text) => {
    expect(() => argsOf("read_file", text)).toThrow(/JSON/);
  });
});

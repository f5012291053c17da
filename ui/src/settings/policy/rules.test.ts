import { describe, expect, it } from "vitest";
import { argsOf, draftOfRule, NEW_RULE, OWN_TOOLS, PRESETS, ruleOfDraft, ruleWords } from "./rules";

describe("a rule of a tool policy", () => {
  it("is the same after it was edited without a change", () => {
    const rule = { tool: "execute", action: "ask" as const, args: { command: "git push *", workdir: "=/srv: a" }, reason: "Pushes need a review." };
    expect(ruleOfDraft(draftOfRule(rule))).toEqual(rule);
  });

  it("leaves out what is empty", () => {
    expect(ruleOfDraft({ ...NEW_RULE, tool: " github__* " })).toEqual({ tool: "github__*", action: "ask" });
  });

  it("says which line is no argument", () => {
    expect(() => ruleOfDraft({ ...NEW_RULE, tool: "execute", args: "git push" })).toThrow("“git push” is no argument");
    expect(() => ruleOfDraft({ ...NEW_RULE, tool: "execute", args: ": git" })).toThrow();
  });

  it("is told in one line", () => {
    expect(ruleWords({ tool: "execute", action: "deny", args: { command: "rm *" } })).toBe("command: rm *");
  });
});

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

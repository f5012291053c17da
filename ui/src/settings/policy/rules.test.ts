import { describe, expect, it } from "vitest";
import { draftOfRule, NEW_RULE, ruleOfDraft, ruleWords } from "./rules";

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

/** Rules of a tool policy while they are edited. Pure. */
import type { components } from "@/api/schema";

export type ToolRule = components["schemas"]["ToolRule"];
export type Policy = components["schemas"]["ToolPolicyReply"];

/** One argument a line, as `name: pattern`. */
export interface RuleDraft {
  readonly tool: string;
  readonly action: ToolRule["action"];
  readonly args: string;
  readonly reason: string;
}

export const NEW_RULE: RuleDraft = { tool: "", action: "ask", args: "", reason: "" };

export const ACTIONS: readonly { value: ToolRule["action"]; label: string }[] = [
  { value: "auto", label: "Run" },
  { value: "ask", label: "Ask first" },
  { value: "deny", label: "Never run" },
];

export function draftOfRule(rule: ToolRule): RuleDraft {
  const args = Object.entries(rule.args ?? {}).map(([name, pattern]) => `${name}: ${pattern}`);
  return { tool: rule.tool, action: rule.action, args: args.join("\n"), reason: rule.reason ?? "" };
}

/** Throws an Error that says which line is wrong. */
export function ruleOfDraft(draft: RuleDraft): ToolRule {
  const args: Record<string, string> = {};
  for (const line of draft.args.split("\n").filter((one) => one.trim() !== "")) {
    const at = line.indexOf(":");
    const name = line.slice(0, Math.max(at, 0)).trim();
    if (name === "") throw new Error(`“${line.trim()}” is no argument: write its name, a colon and a pattern, such as command: git push *`);
    args[name] = line.slice(at + 1).trim();
  }
  return {
    tool: draft.tool.trim(),
    action: draft.action,
    ...(Object.keys(args).length === 0 ? {} : { args }),
    ...(draft.reason.trim() === "" ? {} : { reason: draft.reason.trim() }),
  };
}

export function ruleWords(rule: ToolRule): string {
  return Object.entries(rule.args ?? {})
    .map(([name, pattern]) => `${name}: ${pattern}`)
    .join(", ");
}

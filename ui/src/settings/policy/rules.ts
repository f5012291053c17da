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

// The tools of chatd, and ready-made sets of rules for them. Pure.

export interface KnownTool {
  readonly name: string;
  readonly does: string;
  /** It can change files, run programs or start things. */
  readonly changes: boolean;
  readonly needsWorkspace: boolean;
}

const tool = (name: string, does: string, kind: "looks" | "changes", needsWorkspace: boolean): KnownTool => ({
  name,
  does,
  changes: kind === "changes",
  needsWorkspace,
});

export const OWN_TOOLS: readonly KnownTool[] = [
  tool("execute", "Runs a command in a shell.", "changes", true),
  tool("process_output", "Reads the output of a command.", "looks", true),
  tool("process_list", "Lists the running commands.", "looks", true),
  tool("process_signal", "Ends or signals a command.", "changes", true),
  tool("read_file", "Reads a file.", "looks", true),
  tool("write_file", "Writes a file.", "changes", true),
  tool("edit_files", "Edits files.", "changes", true),
  tool("attach_file", "Attaches a file of the workspace to the chat.", "looks", true),
  tool("read_skill", "Reads a skill.", "looks", false),
  tool("read_skill_file", "Reads a file of a skill.", "looks", false),
  tool("list_templates", "Lists the templates of workspaces.", "looks", false),
  tool("read_template", "Reads a template of workspaces.", "looks", false),
  tool("create_workspace", "Creates a workspace.", "changes", false),
  tool("start_workspace", "Starts the workspace.", "changes", false),
  tool("stop_workspace", "Stops the workspace.", "changes", false),
  tool("spawn_agent", "Starts a subagent.", "changes", false),
  tool("wait_agent", "Waits for subagents.", "looks", false),
  tool("message_agent", "Sends a message to a subagent.", "changes", false),
  tool("interrupt_agent", "Stops a subagent.", "changes", false),
  tool("list_agents", "Lists the subagents.", "looks", false),
  tool("list_subagent_models", "Lists the models of subagents.", "looks", false),
  tool("propose_plan", "Proposes a plan.", "looks", false),
  tool("remember", "Proposes a note to keep.", "looks", false),
  tool("ask_user_question", "Asks the user.", "looks", false),
];

/** Tools of MCP servers have their server's name before two underscores. */
const MCP = "*__*";
const HARMLESS = ["ls *", "pwd", "cat *", "head *", "tail *", "wc *", "grep *", "git status *", "git diff *", "git log *", "git show *"];

export interface Preset {
  readonly name: string;
  readonly hint: string;
  readonly rules: readonly ToolRule[];
}

const rule = (name: string, action: ToolRule["action"]): ToolRule => ({ tool: name, action });
const acting = ["execute", "write_file", "edit_files", "process_signal", "create_workspace", "start_workspace", "stop_workspace", MCP];

export const PRESETS: readonly Preset[] = [
  {
    name: "Ask before changes",
    hint: "Reading runs at once. A person approves commands that are not known to only look, changes of files and workspaces, and calls of MCP servers.",
    rules: [...acting.map((name) => rule(name, "ask")), ...HARMLESS.map((command): ToolRule => ({ tool: "execute", action: "auto", args: { command } }))],
  },
  {
    name: "Read only",
    hint: "Files can be read. No command runs, nothing is written, no MCP server is called. Nothing below can loosen this.",
    rules: acting.map((name) => rule(name, "deny")),
  },
  { name: "Allow all", hint: "Every call runs at once, inside the sandbox of the workspace. Other policies still count.", rules: [] },
];

/** What is sent for a try: a command line for `execute`, JSON for others. Throws an Error that says what is wrong. */
export function argsOf(toolName: string, text: string): Record<string, unknown> {
  if (toolName === "execute" && !text.trimStart().startsWith("{")) return { command: text };
  if (text.trim() === "") return {};
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    throw new Error('Write the arguments as JSON, such as {"path": "src/main.py"}.');
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw new Error("The arguments are a JSON object.");
  return value as Record<string, unknown>;
}

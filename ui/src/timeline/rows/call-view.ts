/**
 * What a tool call shows: its title, what it is about, how it stands, what came of it. Pure, and the one place that
 * knows it: the card of the call, its name for screen readers and the steps on a parent's card all read it here.
 */
import { durationText, plural } from "@/platform/words";
import { fileName } from "@/text/code";
import { countLines, diffOfEdit, diffTexts, type LineCounts, parseHunks, sumCounts, titledHunk, type TitledHunk } from "@/text/diff";
import { asObject, type JsonObject, listOf, numberOf, objectsOf, textOf } from "./json";
import { type CallState, durationOf, type ToolCall } from "./tool-call";

export interface CallView {
  readonly card: CardKind;
  /** What happens or happened, as the beginning of a sentence: "Ran", "Editing", "Stopped by you". */
  readonly title: string;
  /** What it is about: a command, a path, a question. */
  readonly subject: string;
  /** The subject is a sentence, not code. */
  readonly isSentence: boolean;
  /** What came of it; null: only the time it took. */
  readonly summary: CallSummary | null;
  /** Why it failed; empty if it did not, or gave no reason. */
  readonly error: string;
  /** Whether the card is open until the user chooses. */
  readonly isOpen: boolean;
  /** The MCP server that the tool belongs to. */
  readonly server: string;
}

export type CallSummary = { readonly text: string } | LineCounts;

export type CardKind =
  | "agent-message"
  | "agent-stop"
  | "agent-wait"
  | "agents"
  | "attachment"
  | "browser"
  | "command"
  | "computer"
  | "edit"
  | "generic"
  | "memory"
  | "plan"
  | "process-signal"
  | "processes"
  | "question"
  | "read"
  | "search"
  | "skill"
  | "spawn"
  | "templates"
  | "web"
  | "workspace"
  | "write";

/** What is known of one tool. The defaults are those of a tool that the page does not know. */
interface ToolRule {
  readonly card: CardKind;
  /** While it goes on, when it is done, when it failed. */
  readonly titles: Titles | ((call: ToolCall, result: JsonObject | null) => Titles);
  readonly subject?: (call: ToolCall, result: JsonObject | null) => string;
  readonly isSentence?: boolean;
  readonly summary?: (call: ToolCall, result: JsonObject | null) => CallSummary | null;
  readonly error?: (call: ToolCall, result: JsonObject | null) => string;
  readonly isOpen?: (call: ToolCall, result: JsonObject | null) => boolean;
  /** It has a card even if it went well; other calls are then one quiet line. */
  readonly isCard?: boolean;
}

type Titles = readonly [going: string, done: string, failed?: string];

const views = new WeakMap<ToolCall, CallView>();

export function callView(call: ToolCall): CallView {
  const known = views.get(call) ?? makeView(call);
  views.set(call, known);
  return known;
}

function makeView(call: ToolCall): CallView {
  const rule = TOOLS.get(call.name) ?? GENERIC;
  const result = asObject(call.result);
  const isFailed = call.state === "failed";
  return {
    card: rule.card,
    title: titleOf(call, typeof rule.titles === "function" ? rule.titles(call, result) : rule.titles),
    subject: rule.subject?.(call, result) ?? "",
    isSentence: rule.isSentence ?? false,
    summary: rule.summary?.(call, result) ?? null,
    error: rule.error?.(call, result) ?? (isFailed ? textOf(result, "error") : ""),
    isOpen: rule.isOpen?.(call, result) ?? (isGoing(call.state) || isFailed),
    server: rule === GENERIC ? serverOf(call.name) || (call.mcpServer ?? "") : "",
  };
}

function titleOf(call: ToolCall, [going, done, failed = `${done}, failed`]: Titles): string {
  if (call.isCut) return "Cut off";
  if (call.state === "interrupted") return "Stopped by you";
  if (call.state === "failed") return failed;
  return isGoing(call.state) && call.state !== "background" ? going : done;
}

export function isGoing(state: CallState): boolean {
  return state === "streaming" || state === "running" || state === "waiting" || state === "background";
}

/** A call that went well and only read is one quiet line. Everything else is a card. */
export function isQuiet(call: ToolCall): boolean {
  return call.state === "done" && TOOLS.get(call.name)?.isCard !== true && !call.isMedia;
}

/** Reads that follow each other become one line. */
export function isRead(call: ToolCall): boolean {
  return call.name === "read_file" && isQuiet(call);
}

/** The same for one line of several reads. */
export function readsView(calls: readonly ToolCall[]): Pick<CallView, "title" | "subject" | "summary"> {
  const paths = calls.map((call) => textOf(call.args, "path"));
  const isOne = calls.length === 1;
  const took = calls.reduce((sum, call) => sum + (durationOf(call) ?? 0), 0);
  return {
    title: isOne ? "Read" : `Read ${calls.length} files`,
    subject: isOne ? (paths[0] ?? "") : [...new Set(paths.map(fileName))].join(", "),
    summary: { text: took > 0 ? durationText(took) : "" },
  };
}

// Commands.

function commandTitles(call: ToolCall): Titles {
  const intent = textOf(call.args, "model_intent");
  if (call.state === "background") return ["", intent === "" ? "Started" : capitalize(intent)];
  return ["Running", "Ran", "Ran"];
}

const COMMAND: Omit<ToolRule, "titles"> = {
  card: "command",
  subject: (call) => oneLine(textOf(call.args, call.name === "process_output" ? "process_id" : "command")),
  summary: (call, result) => {
    const ended = call.state === "failed" ? endedText(result) : "";
    const took = durationOf(call);
    return ended === "" ? null : { text: took === null ? ended : `${ended}\u2002${durationText(took)}` };
  },
  error: (call, result) => (call.state === "interrupted" ? "" : capitalize(textOf(result, "error"))),
  isOpen: (call) => call.state === "failed" || (call.state === "running" && call.liveOutput !== ""),
};

/** How a command ended; "" of one that has not, and of a result of an earlier version whose exit code is -1. */
export function endedText(result: JsonObject | null): string {
  const signal = textOf(result, "signal");
  if (signal !== "") return signal === "unknown" ? "ended by a signal" : `ended by ${oneLine(signal)}`;
  const code = numberOf(result, "exit_code");
  return code === null || code < 0 ? "" : `exit ${code}`;
}

// Files.

/** Longer changes are closed until the user opens them. */
const OPEN_LINES = 80;

export interface EditedFile {
  readonly path: string;
  readonly hunks: readonly TitledHunk[];
}

const edits = new WeakMap<ToolCall, readonly EditedFile[]>();

/** The files that a call writes or edits, with what changes in them. */
export function editedFiles(call: ToolCall): readonly EditedFile[] {
  const known = edits.get(call) ?? (call.name === "write_file" ? [writtenFile(call)] : readEdits(call));
  edits.set(call, known);
  return known;
}

function writtenFile({ args }: ToolCall): EditedFile {
  const lines = diffTexts("", textOf(args, "content").replace(/\n$/, ""));
  return { path: textOf(args, "path"), hunks: [{ title: "", lines }] };
}

/** From the result, or, before there is one, from what the model asks for. */
function readEdits(call: ToolCall): readonly EditedFile[] {
  const done = objectsOf(asObject(call.result), "files").map((file) => ({
    path: textOf(file, "path"),
    hunks: parseHunks(textOf(file, "diff")).map(titledHunk),
  }));
  if (done.length > 0) return done;
  return objectsOf(call.args, "files").map((file) => ({
    path: textOf(file, "path"),
    hunks: objectsOf(file, "edits").map((edit) => ({
      title: "",
      lines: diffOfEdit(textOf(edit, "old_text") || textOf(edit, "search"), textOf(edit, "new_text") || textOf(edit, "replace")),
    })),
  }));
}

function lineCounts(call: ToolCall): LineCounts {
  return sumCounts(editedFiles(call).flatMap((file) => file.hunks.map((hunk) => countLines(hunk.lines))));
}

/** Short changes are open, but for the plan of a chat, which is read where the agent proposes it. */
function isWorthOpening(call: ToolCall): boolean {
  const { added, removed } = lineCounts(call);
  return added + removed <= OPEN_LINES && !editedFiles(call).every((file) => /(^|\/)\.chatd\/plans\/PLAN-[^/]+\.md$/.test(file.path));
}

function editTitles(call: ToolCall): Titles {
  const count = editedFiles(call).length;
  return ["Editing", count > 1 ? `Edited ${count} files` : "Edited", "Edit failed"];
}

function editSubject(call: ToolCall): string {
  const files = editedFiles(call);
  return files.length > 1 ? files.map((file) => fileName(file.path)).join(", ") : (files[0]?.path ?? "");
}

/** What a tool that lists or searches has found. */
export function hitsOf(result: JsonObject | null): readonly unknown[] {
  return ["matches", "files", "entries", "results"].map((key) => listOf(result, key)).find((list) => list.length > 0) ?? [];
}

const SEARCH: ToolRule = {
  card: "search",
  titles: (call) => (call.name.startsWith("list") ? ["Listing", "Listed"] : ["Searching", "Searched"]),
  subject: (call) => firstText(call.args, ["pattern", "query", "regex", "glob", "path", "directory"]),
  summary: (_, result) => counted(hitsOf(result).length, "hit"),
};

export function webPages(result: unknown): readonly JsonObject[] {
  const listed = Array.isArray(result) ? result.map(asObject).filter((page) => page !== null) : [];
  const object = asObject(result);
  return [...listed, ...objectsOf(object, "results"), ...objectsOf(object, "sources")].filter((page) => textOf(page, "url") !== "");
}

// Workspaces, agents, questions.

function workspaceRule(going: string, done: string, failed: string): ToolRule {
  return {
    card: "workspace",
    titles: (_, result) => [going, result?.already_exists === true || result?.no_build === true ? "Workspace is ready" : done, failed],
    subject: (call, result) => textOf(result, "workspace_name") || textOf(call.args, "name"),
    isCard: true,
  };
}

const TEMPLATES: ToolRule = {
  card: "templates",
  titles: (call) => (call.name === "list_templates" ? ["Looking for templates", "Looked for templates"] : ["Reading template", "Read template"]),
  subject: (call, result) => (call.name === "list_templates" ? textOf(call.args, "query") : textOf(asObject(result?.template), "name")),
  summary: (call, result) =>
    call.name === "list_templates" && call.state === "done" ? { text: plural(objectsOf(result, "templates").length, "template") } : null,
};

const SPAWN: ToolRule = {
  card: "spawn",
  titles: ["Spawning agent", "Spawned agent", "Agent not spawned"],
  subject: (call, result) => textOf(result, "title") || textOf(call.args, "title") || firstLine(textOf(call.args, "prompt")),
  isSentence: true,
  isOpen: (call) => call.state === "failed",
  isCard: true,
};

const STOP_AGENT: ToolRule = {
  card: "agent-stop",
  titles: ["Stopping agent", "Stopped agent", "Agent not stopped"],
  subject: (_, result) => textOf(result, "title"),
  isSentence: true,
};

const SKILL: ToolRule = {
  card: "skill",
  titles: ["Reading skill", "Read skill", "Skill not read"],
  subject: (call) => [textOf(call.args, "name"), textOf(call.args, "path")].filter(Boolean).join("/"),
};

function questionSubject({ args }: ToolCall): string {
  const questions = objectsOf(args, "questions");
  const [only] = questions;
  return questions.length === 1 && only !== undefined ? questionText(only) : `${questions.length} questions`;
}

export function questionText(question: JsonObject): string {
  return textOf(question, "question") || textOf(question, "header");
}

/** A tool of an MCP server, or one that this page does not know. */
const GENERIC: ToolRule = {
  card: "generic",
  titles: (call) => {
    const intent = textOf(call.args, "model_intent");
    const name = humanize(call.name);
    return [intent === "" ? name : capitalize(intent), name, `${name} failed`];
  },
  subject: (call) => onlyText(call.args),
  isSentence: true,
  isOpen: (call) => call.state === "failed" || call.isMedia,
};

/** The ids of calls that run commands of a person begin so. */
const PERSONS_CALL = "person-command-";

const TOOLS: ReadonlyMap<string, ToolRule> = new Map<string, ToolRule>([
  [
    "execute",
    {
      ...COMMAND,
      titles: commandTitles,
      isOpen: (call, result) => call.id.startsWith(PERSONS_CALL) || (COMMAND.isOpen?.(call, result) ?? false),
    },
  ],
  ["process_output", { ...COMMAND, titles: ["Waiting for", "Output of", "Output of"] }],
  [
    "process_list",
    {
      card: "processes",
      titles: ["Listing processes", "Listed processes"],
      summary: (call, result) =>
        call.state === "done" ? { text: `${objectsOf(result, "processes").filter((process) => process.running === true).length} running` } : null,
    },
  ],
  [
    "process_signal",
    {
      card: "process-signal",
      titles: (call) => {
        const isKill = textOf(call.args, "signal") === "kill";
        return [isKill ? "Killing process" : "Ending process", isKill ? "Killed process" : "Ended process", "Process not ended"];
      },
      subject: (call) => textOf(call.args, "process_id"),
    },
  ],
  ["read_file", { card: "read", titles: ["Reading", "Read", "Not read"], subject: (call) => textOf(call.args, "path") }],
  [
    "write_file",
    {
      card: "write",
      titles: ["Writing", "Wrote", "Not written"],
      subject: (call) => textOf(call.args, "path"),
      summary: (call) => (call.state === "done" ? lineCounts(call) : null),
      isOpen: (call) => call.state === "failed" || call.state === "streaming" || call.state === "running" || (call.state === "done" && isWorthOpening(call)),
      isCard: true,
    },
  ],
  [
    "edit_files",
    {
      card: "edit",
      titles: editTitles,
      subject: editSubject,
      summary: (call) => (call.state === "failed" ? { text: "nothing changed" } : call.state === "done" ? lineCounts(call) : null),
      isOpen: (call) => call.state === "failed" || (call.state !== "interrupted" && isWorthOpening(call)),
      isCard: true,
    },
  ],
  ["computer", { card: "computer", titles: ["Using the desktop", "Used the desktop"], isOpen: () => true }],
  ["list_files", SEARCH],
  ["list_directory", SEARCH],
  ["search_files", SEARCH],
  ["grep", SEARCH],
  ["glob", SEARCH],
  [
    "web_search",
    {
      card: "web",
      titles: ["Searching the web", "Searched the web", "Web search failed"],
      subject: (call) => textOf(call.args, "query"),
      isSentence: true,
      summary: (call) => counted(webPages(call.result).length, "page"),
    },
  ],
  ["browser", { card: "browser", titles: ["Using the browser", "Used the browser"], isOpen: (call) => call.state === "failed" || call.isMedia }],
  ["create_workspace", workspaceRule("Creating workspace", "Created workspace", "Workspace not created")],
  ["start_workspace", workspaceRule("Starting workspace", "Started workspace", "Workspace not started")],
  ["stop_workspace", workspaceRule("Stopping workspace", "Stopped workspace", "Workspace not stopped")],
  ["list_templates", TEMPLATES],
  ["read_template", TEMPLATES],
  ["spawn_agent", SPAWN],
  ["spawn_computer_use_agent", SPAWN],
  [
    "wait_agent",
    {
      card: "agent-wait",
      titles: (_, result) => [
        "Waiting for agent",
        result?.timed_out === true || result?.interrupted === true ? "Agent still works" : "Agent answered",
        "Agent failed",
      ],
      subject: (_, result) => textOf(result, "title"),
      isSentence: true,
      error: (_, result) => textOf(result, "last_error") || textOf(result, "error"),
    },
  ],
  [
    "message_agent",
    {
      card: "agent-message",
      titles: ["Writing to agent", "Wrote to agent", "Message not sent"],
      subject: (_, result) => textOf(result, "title"),
      isSentence: true,
    },
  ],
  ["interrupt_agent", STOP_AGENT],
  ["close_agent", STOP_AGENT],
  [
    "list_agents",
    {
      card: "agents",
      titles: ["Listing agents", "Listed agents"],
      summary: (call, result) => (call.state === "done" ? { text: plural(objectsOf(result, "agents").length, "agent") } : null),
    },
  ],
  [
    "propose_plan",
    {
      card: "plan",
      titles: ["Writing a plan", "Proposed a plan", "Plan not proposed"],
      subject: (call, result) => textOf(result, "path") || textOf(call.args, "path"),
      isOpen: (call) => call.state === "failed",
      isCard: true,
    },
  ],
  [
    "ask_user_question",
    {
      card: "question",
      titles: ["Asking", "Asked", "Not answered"],
      subject: questionSubject,
      isSentence: true,
      isOpen: (_, result) => objectsOf(result, "answers").length > 0,
      isCard: true,
    },
  ],
  [
    "attach_file",
    {
      card: "attachment",
      titles: ["Attaching", "Attached", "Not attached"],
      subject: (call, result) => textOf(result, "name") || textOf(call.args, "path"),
      isOpen: (call) => call.state !== "interrupted",
      isCard: true,
    },
  ],
  ["read_skill", SKILL],
  ["read_skill_file", SKILL],
  [
    "remember",
    {
      card: "memory",
      titles: ["Writing a note", "Proposed a note", "Note not proposed"],
      isCard: true,
      isOpen: (call) => call.state === "failed",
    },
  ],
]);

export const KNOWN_TOOLS: readonly string[] = [...TOOLS.keys()];

// Names.

/** The call in a few words, for screen readers and a parent's card: its tool, and what it is about by its arguments. */
export function callName(call: ToolCall): string {
  const subject = firstText(call.args, ["command", "path", "title", "query", "pattern", "name", "process_id"]);
  const [edited] = objectsOf(call.args, "files");
  return clip([humanize(call.name), subject || textOf(edited ?? null, "path")].filter(Boolean).join(" "));
}

export function readsName(calls: readonly ToolCall[]): string {
  return calls.length === 1 ? `Read ${fileName(textOf(calls[0]?.args ?? null, "path"))}` : `Read ${calls.length} files`;
}

export function stateWord({ state }: ToolCall): string {
  return state === "interrupted" ? "stopped" : state === "streaming" ? "running" : state;
}

/** `github__create_issue` is "Create issue". */
export function humanize(name: string): string {
  const own = name.split("__").at(-1) ?? name;
  const words = own
    .replace(/([a-z0-9])([A-Z])/g, "$1 $2")
    .replace(/[_\-.]+/g, " ")
    .trim()
    .toLowerCase();
  return words === "" ? name : capitalize(words);
}

/** The MCP server of `github__create_issue`. A repository names its servers freely, so the name says that it is the workspace's. */
export function serverOf(name: string): string {
  const [first = "", second = "", ...rest] = name.split("__");
  if (first === "workspace" && rest.length > 0) return `workspace: ${second}`;
  return second === "" ? "" : first;
}

/** The one argument that is a text; empty if there are several. */
function onlyText(args: JsonObject | null): string {
  const texts = Object.entries(args ?? {}).filter(([key, value]) => key !== "model_intent" && typeof value === "string" && value !== "");
  return texts.length === 1 ? firstLine(String(texts[0]?.[1])).slice(0, 200) : "";
}

function firstText(args: JsonObject | null, keys: readonly string[]): string {
  return keys.map((key) => textOf(args, key)).find(Boolean) ?? "";
}

function counted(count: number, noun: string): CallSummary | null {
  return count === 0 ? null : { text: plural(count, noun) };
}

const MAX_NAME_CHARS = 120;

/** The first line, cut to a length that is still read at a glance. */
export function clip(text: string): string {
  const line = firstLine(text);
  return line.length > MAX_NAME_CHARS ? `${line.slice(0, MAX_NAME_CHARS)}…` : line;
}

function firstLine(text: string): string {
  return text.trim().split("\n")[0] ?? "";
}

export function oneLine(text: string): string {
  return text.replace(/\s*\n\s*/g, " ↵ ").trim();
}

function capitalize(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

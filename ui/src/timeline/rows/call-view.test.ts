import { describe, expect, it } from "vitest";
import { call, callDelta, chat, live, message, result } from "../testing";
import { callName, callView, type CallView } from "./call-view";
import { rows } from "./rows";

const viewOf = (state: Parameters<typeof rows>[0]): CallView => {
  const [row] = rows(state);
  if (row?.kind === "reads" && row.calls[0] !== undefined) return callView(row.calls[0]);
  if (row?.kind !== "tool") throw new Error("The call has no row.");
  return callView(row.call);
};
const done = (name: string, args: object, value: unknown, more: object = {}) =>
  viewOf(chat([message(2, "assistant", call("c", name, args)), message(3, "tool", result("c", name, value, { created_at: null, ...more }))]));
const going = (name: string, args: object) => viewOf(chat([message(2, "assistant", call("c", name, args))], { status: "running" }));

const edit = { files: [{ path: "/w/a.py", edits: [{ old_text: "a\nb", new_text: "a\nc\nd" }] }] };
const two = { files: [...edit.files, { path: "/w/b.py", edits: [] }] };

/** The view, then what is shown: title, subject, summary, and whether it is open. */
const TABLE: readonly (readonly [string, CallView, string, boolean])[] = [
  ["a command that runs", going("execute", { command: "make\ntest" }), "Running | make ↵ test | time", false],
  ["a command that ran", done("execute", { command: "make" }, { exit_code: 0 }), "Ran | make | time", false],
  ["a command that failed", done("execute", { command: "make" }, { exit_code: 2, wall_duration_ms: 4200 }), "Ran | make | exit 2\u20024.2 s", true],
  ["a command that was killed", done("execute", { command: "make" }, { success: false, signal: "SIGKILL" }), "Ran | make | ended by SIGKILL", true],
  [
    "a command in the background says what it is for",
    done("execute", { command: "serve", model_intent: "preview" }, { running: true }),
    "Preview | serve | time",
    false,
  ],
  ["a read", done("read_file", { path: "/w/a.py" }, { content: "x" }), "Read | /w/a.py | time", false],
  ["a short edit", done("edit_files", edit, {}), "Edited | /w/a.py | +2 −1", true],
  ["an edit of two files", done("edit_files", two, {}), "Edited 2 files | a.py, b.py | +2 −1", true],
  ["an edit that failed", done("edit_files", edit, { error: "Not found." }, { is_error: true }), "Edit failed | /w/a.py | nothing changed", true],
  ["a new file", done("write_file", { path: "/w/a.py", content: "1\n2\n" }, {}), "Wrote | /w/a.py | +2 −0", true],
  ["a long new file", done("write_file", { path: "/w/a.py", content: "1\n".repeat(81) }, {}), "Wrote | /w/a.py | +81 −0", false],
  ["one hit", done("grep", { pattern: "x" }, { matches: ["a:1"] }), "Searched | x | 1 hit", false],
  ["processes", done("process_list", {}, { processes: [{ running: true }, {}] }), "Listed processes |  | 1 running", false],
  ["a workspace that was there", done("create_workspace", { name: "w" }, { already_exists: true }), "Workspace is ready | w | time", false],
  ["an agent that still works", done("wait_agent", {}, { timed_out: true, title: "Callers" }), "Agent still works | Callers | time", false],
  ["two questions", done("ask_user_question", { questions: [{}, {}] }, { answers: [{}] }), "Asked | 2 questions | time", true],
  ["a tool of a server", done("github__create_issue", { title: "Slow" }, {}), "Create issue | Slow | time", false],
];

describe("what a call shows", () => {
  it.each(TABLE)("%s", (_, { title, subject, summary, isOpen }, shown, opens) => {
    const end = summary === null ? "time" : "text" in summary ? summary.text : `+${summary.added} −${summary.removed}`;
    expect([`${title} | ${subject} | ${end}`, isOpen]).toEqual([shown, opens]);
  });

  it("is the server of a tool that belongs to one", () => {
    expect(done("github__create_issue", {}, {}).server).toBe("github");
    expect(done("execute", {}, {}).server).toBe("");
  });

  it("is why it failed, and nothing if it did not or was stopped", () => {
    expect(done("read_file", { path: "/a" }, { error: "no such file" }, { is_error: true }).error).toBe("no such file");
    expect(done("execute", { command: "x" }, { error: "no shell" }, { is_error: true }).error).toBe("No shell");
    expect(done("execute", { command: "x" }, { error: "no result" }, { is_error: true, interrupted: true }).error).toBe("");
    expect(done("read_file", { path: "/a" }, { content: "" }).error).toBe("");
  });

  it("is the same object as long as the call is", () => {
    const state = chat([], { status: "running", live: live([callDelta("c", "execute", "{")]) });
    const [row] = rows(state);
    if (row?.kind !== "tool") throw new Error("The call has no row.");
    expect(callView(row.call)).toBe(callView(row.call));
    expect(callName(row.call)).toBe("Execute");
  });
});

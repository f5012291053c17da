import { cleanup, fireEvent, render, screen } from "@testing-library/react";
import { afterEach, describe, expect, it, vi } from "vitest";
import type { Part } from "@/chat-state/types";
import { ActionsProvider, NO_ACTIONS } from "../actions";
import { RowShell } from "../list/row-list";
import { KNOWN_TOOLS } from "../rows/call-view";
import type { Row, ToolRow } from "../rows/row";
import { rows } from "../rows/rows";
import type { CallState } from "../rows/tool-call";
import { call, callDelta, chat, live, message, result, resultDelta, text, thought } from "../testing";
import { RowView } from "../views/row-view";
import { stepReader } from "./agent-cards";
import { OpenRowsProvider } from "./frame";

afterEach(cleanup);

const ARGS = {
  command: "pytest -q",
  path: "/w/a.py",
  content: "x = 1\n",
  process_id: "p-7",
  signal: "kill",
  query: "skip locked",
  pattern: "claim",
  name: "release-notes",
  title: "Find callers",
  prompt: "Find callers",
  message: "also the tests",
  files: [{ path: "/w/a.py", edits: [{ old_text: "a\nb", new_text: "a\nc" }] }],
  questions: [
    {
      question: "Where?",
      options: [
        { label: "Here", description: "near" },
        { label: "There", description: "far" },
      ],
    },
  ],
};
const HUGE = Array.from({ length: 12_345 }, (_, index) => `line ${index}`).join("\n");
const TOOLS = [...KNOWN_TOOLS, "github__create_issue", "unheard_of"];

function stateOf(name: string, state: CallState | "huge" | "malformed") {
  const asked = message(2, "assistant", call("c", name, ARGS));
  const answered = (value: unknown, isError = false) => chat([asked, message(3, "tool", result("c", name, value, { is_error: isError }))]);
  switch (state) {
    case "streaming":
      return chat([], { status: "running", live: live([callDelta("c", name, JSON.stringify(ARGS).slice(0, 40))]) });
    case "running":
      return chat([asked], { status: "running", live: live([resultDelta("c", name, "so far\n")]) });
    case "waiting":
      return chat([asked], { status: "requires_action", requestedCalls: [{ tool_call_id: "c", tool_name: name }] });
    case "failed":
      return answered({ error: "It did not work.", exit_code: 2, success: false }, true);
    case "interrupted":
      return answered({ error: "No result.", interrupted: true, running: true }, true);
    case "huge":
      return answered({
        success: true,
        exit_code: 0,
        output: HUGE,
        content: HUGE,
        report: "r",
        body: HUGE,
        files: [{ path: "/w/a.py", diff: `@@ -1 +1 @@\n${HUGE.replaceAll("line", "+line")}` }],
      });
    case "malformed":
      return answered(["not", "an", "object", null, { nested: [1, "x"] }]);
    default:
      return answered({ success: true, exit_code: 0, ok: true, output: "fine", content: "1\tx" });
  }
}

function show(name: string, state: Parameters<typeof stateOf>[1]) {
  const [row] = rows(stateOf(name, state));
  if (row === undefined) throw new Error("no row");
  return render(
    <ActionsProvider value={NO_ACTIONS}>
      <OpenRowsProvider>
        <RowView row={row} />
      </OpenRowsProvider>
    </ActionsProvider>,
  );
}

describe.each(TOOLS)("%s", (name) => {
  it("says what the model writes while it writes it", () => {
    const { container } = show(name, "streaming");
    expect(container.querySelector(".tool-card.is-going")).not.toBeNull();
  });

  it("shows that it runs", () => {
    const { container } = show(name, "running");
    expect(container.querySelector(".is-going .ui-spin")).not.toBeNull();
  });

  it("is done", () => {
    const { container } = show(name, "done");
    expect(container.textContent).not.toBe("");
    expect(container.querySelector(".ui-spin, .is-bad, .is-cut-off")).toBeNull();
  });

  it("has a red head when it failed, and is open", () => {
    const { container } = show(name, "failed");
    expect(container.querySelector(".tool-card.is-bad")).not.toBeNull();
    if (name !== "process_list" && name !== "list_agents" && name !== "ask_user_question") expect(container.textContent).toContain("It did not work.");
  });

  it("is dashed when it was stopped", () => {
    const { container } = show(name, "interrupted");
    expect(container.querySelector(".tool-card.is-cut-off")).not.toBeNull();
    expect(screen.getByText("Stopped by you")).toBeTruthy();
  });

  it("shows a huge result in few nodes", () => {
    const { container } = show(name, "huge");
    const summary = container.querySelector("details:not([open]) > summary");
    if (summary !== null) fireEvent.click(summary);
    expect(container.querySelectorAll("*").length).toBeLessThan(700);
    expect(container.textContent.length).toBeLessThan(120_000);
  });

  it("bears a result of another shape", () => {
    const { container } = show(name, "malformed");
    const summary = container.querySelector("details:not([open]) > summary");
    if (summary !== null) fireEvent.click(summary);
    expect(container.textContent).not.toBe("");
  });

  it("bears arguments that are no JSON", () => {
    const cut = { ...call("c", name, undefined), cut: true };
    const [row] = rows(chat([message(2, "assistant", cut)]));
    expect(() => render(<RowView row={row as ToolRow} />)).not.toThrow();
    expect(screen.getByText("Cut off")).toBeTruthy();
  });
});

describe("the plan of a chat", () => {
  const PATH = "~/.chatd/plans/PLAN-3f2b8c1e-7a4d-4e59-9b16-0c5d2e8f7a31.md";
  const edits = [{ old_text: "a", new_text: "b" }];

  it.each([
    ["write_file", { path: PATH, content: "# Repair it\n" }, true],
    ["write_file", { path: "/w/PLAN-a.md", content: "# Repair it\n" }, false],
    ["edit_files", { files: [{ path: PATH, edits }] }, true],
    [
      "edit_files",
      {
        files: [
          { path: PATH, edits },
          { path: "/w/a.py", edits },
        ],
      },
      false,
    ],
  ])("is read where it is proposed: %s of it is closed", (name, args, closed) => {
    const [row] = rows(chat([message(2, "assistant", call("c", name, args)), message(3, "tool", result("c", name, { ok: true }))]));
    const { container } = render(<RowView row={row as ToolRow} />);
    expect(container.querySelector("details[open]") === null).toBe(closed);
  });
});

describe("the steps of a subagent", () => {
  const settled = chat([message(1, "user", text("go"))], { status: "running" });
  const at = (...parts: Part[]) => ({ ...settled, live: live(parts) });

  it("change with what it does, and not with each word", () => {
    const stepsOf = stepReader();
    const said = stepsOf(at(thought("a")));
    expect(said.map((step) => step.text)).toEqual(["Thinking"]);
    expect(stepsOf(at(thought("a thought\n\nand more")))).toBe(said);
    const writing = stepsOf(at(thought("a thought"), text("The")));
    expect(writing.map((step) => step.text)).toEqual(["Thought", "Writing"]);
    expect(stepsOf(at(thought("a thought"), text("The answer is")))).toBe(writing);
    const calling = stepsOf(at(callDelta("c", "execute", '{"comm')));
    expect(stepsOf(at(callDelta("c", "execute", '{"command":"ls -l')))).toBe(calling);
    const ran = stepsOf(at(call("c", "execute", { command: "ls -l" }), resultDelta("c", "execute", "a\n")));
    expect(ran.map((step) => step.text)).toEqual(["Execute ls -l"]);
    expect(stepsOf(at(call("c", "execute", { command: "ls -l" }), resultDelta("c", "execute", "a\nb\n")))).toBe(ran);
  });
});

it("a row that cannot be shown says so in its place", () => {
  vi.spyOn(console, "error").mockImplementation(() => undefined);
  const [row] = rows(stateOf("execute", "done"));
  const broken = {
    ...(row as ToolRow).call,
    get result() {
      return fail();
    },
  };
  const good: Row = { kind: "prose", key: "g", messageId: 1, isTight: false, text: "beside it", isLive: false };
  render(
    <>
      <RowShell row={{ ...(row as ToolRow), call: broken }} index={0} isLast={false} start={0} isMarked={false} measure={null} />
      <RowShell row={good} index={1} isLast={false} start={10} isMarked={false} measure={null} />
    </>,
  );
  expect(screen.getByRole("alert").textContent).toContain("This part of the chat cannot be shown.");
  expect(screen.getByText("beside it")).toBeTruthy();
});

const fail = (): never => {
  throw new Error("broken");
};

describe("cards", () => {
  it("open the last lines of a command that failed, and all of them by steps", () => {
    const asked = message(2, "assistant", call("c", "execute", { command: "make" }));
    const [row] = rows(chat([asked, message(3, "tool", result("c", "execute", { success: false, exit_code: 2, output: HUGE }))]));
    render(<RowView row={row as ToolRow} />);
    const output = screen.getByLabelText("Output, last lines");
    expect(output.textContent).toContain("line 12344");
    expect(output.textContent).not.toContain("line 12324\n");
    fireEvent.click(screen.getByRole("button", { name: "Show 2,000 of 12,325 hidden lines" }));
    expect(output.textContent).toContain("line 12324\n");
  });

  it("show the exit code and the time of a command", () => {
    const asked = message(2, "assistant", call("c", "execute", { command: "make" }));
    const [row] = rows(chat([asked, message(3, "tool", result("c", "execute", { success: false, exit_code: 2, wall_duration_ms: 4200 }))]));
    const { container } = render(<RowView row={row as ToolRow} />);
    expect(container.querySelector(".ui-meta")?.textContent).toMatch(/exit 2\s4\.2 s/);
  });

  it("stay as they were opened when the row is shown again", () => {
    const [row] = rows(stateOf("execute", "done"));
    const view = (isShown: boolean) => <OpenRowsProvider>{isShown && <RowView row={row as ToolRow} />}</OpenRowsProvider>;
    const { rerender } = render(view(true));
    fireEvent.click(screen.getByText("Ran"));
    rerender(view(false));
    rerender(view(true));
    expect(screen.getByLabelText("Output").textContent).toBe("fine");
  });
});

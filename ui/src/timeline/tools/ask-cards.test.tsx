import { cleanup, render, screen } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { afterEach, describe, expect, it, vi } from "vitest";
import type { RequestedCall } from "@/chat-state/types";
import { ActionsProvider, type CallAnswer, NO_ACTIONS } from "../actions";
import { rows } from "../rows/rows";
import { call, chat, message, result } from "../testing";
import { RowView } from "../views/row-view";
import { OpenRowsProvider } from "./frame";

afterEach(cleanup);

const QUESTIONS = {
  questions: [
    { question: "Where?", options: [{ label: "Schema", description: "near" }, { label: "Files" }] },
    { question: "Which?", options: ["PDF", "CSV"], multi_select: true },
  ],
};

function show(name: string, args: unknown, request: Partial<RequestedCall> | null, answered?: unknown) {
  const decide = vi.fn<(answer: CallAnswer) => Promise<void>>(() => new Promise(() => undefined));
  const asked = message(2, "assistant", call("c", name, args));
  const waiting = request === null ? [] : [{ tool_call_id: "c", tool_name: name, ...request }];
  const messages = answered === undefined ? [asked] : [asked, message(3, "tool", result("c", name, answered))];
  const state = chat(messages, answered === undefined ? { status: "requires_action", requestedCalls: waiting } : {});
  const [row] = rows(state);
  if (row === undefined) throw new Error("no row");
  const view = render(
    <ActionsProvider value={{ ...NO_ACTIONS, decide }}>
      <OpenRowsProvider>
        <RowView row={row} />
      </OpenRowsProvider>
    </ActionsProvider>,
  );
  return { decide, user: userEvent.setup(), view };
}

describe("an approval", () => {
  const push = { command: "git push origin", model_intent: "publishing the branch" };

  it("shows the command and what the agent says of it, and approves once", async () => {
    const { decide, user } = show("execute", push, { kind: "approval", can_always: false, deadline: new Date(Date.now() + 60_000).toISOString() });
    expect(screen.getByText("git push origin")).toBeTruthy();
    expect(screen.getByText("publishing the branch")).toBeTruthy();
    expect(screen.getByText(/Expires in/)).toBeTruthy();
    expect(screen.queryByRole("button", { name: "Always in this chat" })).toBeNull();
    await user.click(screen.getByRole("button", { name: "Approve once" }));
    await user.click(screen.getByRole("button", { name: "Approve once" }));
    expect(decide.mock.calls).toEqual([[{ tool_call_id: "c", decision: "approve" }]]);
  });

  it("can be given for all such calls where the server allows that", async () => {
    const { decide, user } = show("github__create_issue", { title: "x" }, { kind: "approval", can_always: true });
    await user.click(screen.getByRole("button", { name: "Always in this chat" }));
    expect(decide.mock.calls).toEqual([[{ tool_call_id: "c", decision: "approve", always: true }]]);
  });

  it("is denied with a reason, and by keys while it has the focus", async () => {
    const { decide, user } = show("execute", push, { kind: "approval" });
    screen.getByRole("region", { name: /Approval/ }).focus();
    await user.keyboard("n");
    await user.keyboard("yes, to staging{Enter}");
    expect(decide.mock.calls).toEqual([[{ tool_call_id: "c", decision: "deny", reason: "yes, to staging" }]]);
  });

  it("is given by y while it has the focus", async () => {
    const { decide, user } = show("execute", push, { kind: "approval" });
    screen.getByRole("region", { name: /Approval/ }).focus();
    await user.keyboard("y");
    expect(decide.mock.calls).toEqual([[{ tool_call_id: "c", decision: "approve" }]]);
  });
});

describe("questions", () => {
  it("are answered together, by options and by own words", async () => {
    const { decide, user } = show("ask_user_question", QUESTIONS, { kind: "question" });
    expect(screen.getByRole("button", { name: "Answer" }).getAttribute("aria-disabled")).toBe("true");
    await user.click(screen.getByRole("radio", { name: /Schema/ }));
    await user.click(screen.getByRole("checkbox", { name: /PDF/ }));
    await user.click(screen.getByRole("checkbox", { name: /CSV/ }));
    await user.type(screen.getByRole("textbox", { name: /Own words: Where/ }), "with an index");
    await user.click(screen.getByRole("button", { name: "Answer" }));
    expect(decide.mock.calls[0]?.[0]).toEqual({
      tool_call_id: "c",
      decision: "answer",
      replies: [
        { labels: ["Schema"], text: "with an index" },
        { labels: ["PDF", "CSV"], text: "" },
      ],
    });
  });

  it("can be left to the agent", async () => {
    const { decide, user } = show("ask_user_question", QUESTIONS, { kind: "question" });
    await user.click(screen.getByRole("button", { name: "You decide" }));
    expect(decide.mock.calls[0]?.[0]).toMatchObject({ decision: "deny" });
  });

  it("show the answers once they are answered, in every tab", () => {
    const answers = [
      { header: "", question: "Where?", chosen: ["Files"], text: "" },
      { header: "", question: "Which?", chosen: ["PDF", "CSV"], text: "soon" },
    ];
    show("ask_user_question", QUESTIONS, null, { answers });
    expect(screen.queryByRole("button", { name: "Answer" })).toBeNull();
    expect(screen.getByText("PDF, CSV. soon")).toBeTruthy();
  });
});

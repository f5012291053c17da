import { cleanup, fireEvent, render, screen } from "@testing-library/react";
import { afterEach, describe, expect, it } from "vitest";
import { callFacts, callOutcome, callTitle, type ModelCall, tokensText } from "./debug-tab";
import { JsonTree } from "./json-tree";

afterEach(cleanup);

const CALL: ModelCall = {
  id: "c",
  kind: "turn",
  model_config_id: null,
  provider: "demo",
  model: "demo-1",
  attempt: 2,
  history_version: 1204,
  turn_message_id: 12,
  started_at: "2026-11-17T12:00:00Z",
  duration_ms: 4200,
  first_part_ms: null,
  error: "The provider is overloaded.",
  error_kind: "overloaded",
  status_code: 529,
  finish_reason: null,
  usage: { input_tokens: 3261, output_tokens: 9, cache_read_tokens: 1024, estimated: true },
  is_cut: false,
};

describe("a recorded model call", () => {
  it("is told in words", () => {
    expect(callTitle(CALL)).toBe("Answer, attempt 2");
    expect(tokensText(CALL.usage)).toBe("3,261 in, 9 out, 1,024 from cache (estimated)");
    expect(Object.fromEntries(callFacts(CALL))).toMatchObject({
      Model: "demo-1 of demo",
      Status: "529",
      Error: "The provider is overloaded.",
      "First part": "none came",
    });
  });

  it("is no failure if a person stopped it", () => {
    expect(callOutcome(CALL)).toBe("error");
    expect(callOutcome({ ...CALL, error_kind: "cancelled" })).toBe("stopped");
    expect(callOutcome({ ...CALL, error: null, error_kind: null })).toBe("done");
  });
});

describe("a tree of JSON", () => {
  it("opens branches by a press", () => {
    render(<JsonTree label="Request" value={{ messages: [{ role: "user", text: "hello" }] }} />);
    expect(screen.queryByText("hello")).toBeNull();
    fireEvent.click(screen.getByRole("button", { name: /messages/ }));
    fireEvent.click(screen.getByRole("button", { name: /user/ }));
    expect(screen.getByText("hello")).toBeTruthy();
  });

  it("shows long lists in steps, and cuts long texts", () => {
    render(<JsonTree label="Answer" value={Array.from({ length: 250 }, (_, index) => (index === 0 ? "x".repeat(5000) : index))} />);
    expect(screen.getAllByText(/^\d+:$/)).toHaveLength(100);
    fireEvent.click(screen.getByRole("button", { name: "Show 100 more of 250" }));
    expect(screen.getAllByText(/^\d+:$/)).toHaveLength(200);
    fireEvent.click(screen.getByRole("button", { name: "Show all 5,000 characters" }));
    expect(screen.getByText("x".repeat(5000))).toBeTruthy();
  });

  it("shows text of a model as text", () => {
    const { container } = render(<JsonTree label="Answer" value={{ text: "<img src=x onerror=alert(1)>" }} />);
    expect(container.querySelector("img")).toBeNull();
    expect(screen.getByText("<img src=x onerror=alert(1)>")).toBeTruthy();
  });
});

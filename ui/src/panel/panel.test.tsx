import { cleanup, fireEvent, render, screen } from "@testing-library/react";
import { afterEach, describe, expect, it } from "vitest";
import { LineNote } from "./changes/diff-body";
import { AttemptList, EarlierTurns } from "./runs/attempts";
import { attempt, takenOverTurn, turnOf } from "./runs/testing";

afterEach(cleanup);

describe("the list of attempts", () => {
  it("has the newest first, and the takeover between the workers", () => {
    render(<AttemptList turn={takenOverTurn()} nextAt={null} nextIsDue />);
    const heads = screen.getAllByRole("heading", { level: 4 }).map((head) => head.textContent);
    expect(heads).toEqual(["Attempt 3", "Attempt 2 on b230 s", "b2 took overafter 2.1 s", "Attempt 1 on a141 s"]);
    expect(screen.getByText("lock gone, 2 renewals missed")).toBeTruthy();
  });

  it("bounds a turn of very many attempts", () => {
    const many = turnOf(Array.from({ length: 100 }, (_, index) => attempt(index + 1, "a1", index, index + 1, { outcome: "retry" })));
    render(<AttemptList turn={many} nextAt={null} nextIsDue={false} />);
    expect(screen.getAllByRole("heading", { level: 4 })).toHaveLength(40);
    expect(screen.getByText("60 earlier attempts are in the export.")).toBeTruthy();
  });
});

describe("earlier turns", () => {
  it("shows three, then all; a press chooses one", () => {
    const chosen: number[] = [];
    const turns = [6, 5, 4, 3, 2].map((number) => turnOf([attempt(number, "a1", 0, 10)], number));
    render(<EarlierTurns turns={turns} hasMore={false} isLoadingMore={false} onMore={() => undefined} onChoose={(turn) => chosen.push(turn)} />);
    expect(screen.getAllByText(/^Turn /)).toHaveLength(3);
    fireEvent.click(screen.getByRole("button", { name: "All 5" }));
    fireEvent.click(screen.getByRole("button", { name: /Turn 2/ }));
    expect(chosen).toEqual([2]);
  });
});

describe("a comment on a line", () => {
  it("is added with its text, and given up by Escape", () => {
    const added: string[] = [];
    let canceled = 0;
    render(<LineNote place="Line 23" onAdd={(text) => added.push(text)} onCancel={() => (canceled += 1)} />);
    const box = screen.getByRole("textbox", { name: "Comment on Line 23" });
    fireEvent.change(box, { target: { value: " slow? " } });
    fireEvent.click(screen.getByRole("button", { name: "Add to message" }));
    fireEvent.keyDown(box, { key: "Escape" });
    expect([added, canceled]).toEqual([["slow?"], 1]);
  });
});

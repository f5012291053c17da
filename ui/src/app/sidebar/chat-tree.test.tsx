import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { cleanup, render, screen, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { Router } from "wouter";
import { memoryLocation } from "wouter/memory-location";
import { ConnectionProvider } from "@/connection";
import { setPreference } from "@/platform/preferences";
import { ChatTree } from "./chat-tree";
import type { ListChat } from "./list-chat";
import { makeChat } from "./testing";
import { buildSections } from "./tree-model";

const now = new Date("2026-11-17T12:00:00Z");
const kid = makeChat("kid", { parent_chat_id: "a", title: "Find callers", status: "running" });
const chats = [
  makeChat("ask", { title: "Release", status: "requires_action" }),
  makeChat("p1", { title: "First pin", pin_order: 1 }),
  makeChat("p2", { title: "Second pin", pin_order: 2 }),
  makeChat("a", { title: "Webhooks", has_unread: true, children: [kid] }),
  makeChat("b", { title: "Docs", status: "error" }),
];

function show(list: readonly ListChat[] = chats, currentId: string | null = null) {
  const location = memoryLocation({ path: "/", record: true });
  const onMovePins = vi.fn();
  render(
    <QueryClientProvider client={new QueryClient({ defaultOptions: { queries: { retry: false, enabled: false } } })}>
      <ConnectionProvider>
        <Router hook={location.hook}>
          <ChatTree sections={buildSections(list, [], now)} currentId={currentId} modelName={() => "Sable 4"} search="" canMove onMovePins={onMovePins} />
        </Router>
      </ConnectionProvider>
    </QueryClientProvider>,
  );
  return { location, onMovePins, user: userEvent.setup() };
}

beforeEach(() => setPreference("folded", []));
afterEach(cleanup);

const row = (name: RegExp) => screen.getByRole("treeitem", { name });

describe("the tree of chats", () => {
  it("has one row in the tab order, the open chat", () => {
    show(chats, "b");
    const inOrder = screen.getAllByRole("treeitem").filter((item) => item.tabIndex === 0);
    expect(inOrder).toEqual([row(/Docs/)]);
    expect(row(/Docs/).getAttribute("aria-current")).toBe("page");
  });

  it("shows no unread mark at the chat that is open", () => {
    show(chats, "a");
    expect(within(row(/Webhooks/)).queryByRole("img", { name: "Unread" })).toBeNull();
  });

  it("shows status in words, unread and the level of a subagent", () => {
    show();
    expect(within(row(/Release/)).getByRole("img", { name: "Needs you" })).toBeTruthy();
    expect(within(row(/Docs/)).getByRole("img", { name: "Failed" })).toBeTruthy();
    expect(within(row(/Webhooks/)).getByRole("img", { name: "Unread" })).toBeTruthy();
    expect(row(/Find callers/).getAttribute("aria-level")).toBe("3");
  });

  it("shows the messages of a subagent as read: they are for its parent", () => {
    const done = makeChat("kid", { parent_chat_id: "a", title: "Find callers", has_unread: true });
    show([makeChat("a", { title: "Webhooks", has_unread: true, children: [done] })]);
    expect(row(/Webhooks/).className).not.toContain("is-read");
    expect(within(row(/Find callers/)).queryByRole("img", { name: "Unread" })).toBeNull();
    expect(row(/Find callers/).className).toContain("is-read");
  });

  it("moves with arrows, folds with Left and opens a chat with Enter", async () => {
    const { location, user } = show();
    row(/Webhooks/).focus();
    await user.keyboard("{ArrowDown}");
    expect(document.activeElement).toBe(row(/Find callers/));
    await user.keyboard("{ArrowLeft}{ArrowLeft}");
    expect(row(/Webhooks/).getAttribute("aria-expanded")).toBe("false");
    expect(screen.queryByRole("treeitem", { name: /Find callers/ })).toBeNull();
    await user.keyboard("{ArrowRight}{ArrowDown}{Enter}");
    expect(location.history.at(-1)).toBe("/c/kid");
  });

  it("folds a section with Space", async () => {
    const { user } = show();
    row(/^Today/).focus();
    await user.keyboard(" ");
    expect(screen.queryByRole("treeitem", { name: /Webhooks/ })).toBeNull();
  });

  it("moves a pinned chat with Alt and an arrow, and no other", async () => {
    const { onMovePins, user } = show();
    row(/Second pin/).focus();
    await user.keyboard("{Alt>}{ArrowUp}{/Alt}");
    expect(onMovePins).toHaveBeenCalledWith([
      { id: "p2", pin_order: 1 },
      { id: "p1", pin_order: 2 },
    ]);
    onMovePins.mockClear();
    row(/Docs/).focus();
    await user.keyboard("{Alt>}{ArrowUp}{/Alt}");
    expect(onMovePins).not.toHaveBeenCalled();
  });

  it("opens the menu of a row by its context menu, with a reason where something is not possible", async () => {
    const { user } = show([makeChat("a", { title: "Webhooks", status: "running" })]);
    await user.pointer({ keys: "[MouseRight]", target: row(/Webhooks/) });
    const archive = await screen.findByRole("menuitem", { name: /Archive/ });
    expect(archive.getAttribute("aria-disabled")).toBe("true");
    expect(archive.textContent).toContain("Stop it first");
    await user.keyboard("{Escape}");
    expect(document.activeElement).toBe(row(/Webhooks/));
  });
});

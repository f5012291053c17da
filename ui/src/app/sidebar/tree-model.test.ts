import { describe, expect, it } from "vitest";
import { countFilters, NO_FILTERS, readFilters, writeFilters } from "./filters";
import { treeMove } from "@/components/tree";
import { labelText, type ListChat, shownLabels, shownStatus, subtitle } from "./list-chat";
import { makeChat } from "./testing";
import { buildSections, nodeOf, pinMoves, visibleRows } from "./tree-model";

const now = new Date(2026, 10, 17, 12, 0);
const at = (day: number, hour = 9) => new Date(2026, 10, day, hour).toISOString();
const keysOf = (chats: readonly ListChat[]) => buildSections(chats, [], now).map((section) => [section.name, ...section.nodes.map((node) => node.key)]);

it("a chat between two calls of a failing model is listed as retrying, with or without a worker", () => {
  const retry = { attempt: 2, delay_ms: 8000, error: "The provider is overloaded." };
  for (const status of ["running", "pending"] as const) {
    const chat = makeChat("a", { status, retry });
    expect([shownStatus(chat), subtitle(chat, null)]).toEqual(["retrying", "Retrying: The provider is overloaded."]);
  }
  expect(shownStatus(makeChat("a", { status: "waiting", retry }))).toBe("waiting");
});

it("a chat that waits for its machine says so", () => {
  const chat = makeChat("a", { status: "running", waits_for: "The machine laptop is away." });
  expect(subtitle(chat, null)).toBe("Waits: The machine laptop is away.");
});

describe("the sections of the list", () => {
  it("puts chats by the calendar day of their last change", () => {
    const chats = [
      makeChat("a", { updated_at: at(17, 0) }),
      makeChat("b", { updated_at: at(16, 23) }),
      makeChat("c", { updated_at: at(12) }),
      makeChat("d", { updated_at: at(10) }),
    ];
    expect(keysOf(chats)).toEqual([
      ["today", "a"],
      ["yesterday", "b"],
      ["week", "c"],
      ["older", "d"],
    ]);
  });

  it("shows a chat that needs you first and once, also when only its subagent does", () => {
    const child = makeChat("kid", { parent_chat_id: "b", status: "requires_action" });
    const chats = [makeChat("a", { pin_order: 1 }), makeChat("b", { pin_order: 2, children: [child] })];
    expect(keysOf(chats)).toEqual([
      ["needs", "b"],
      ["pinned", "a"],
    ]);
  });

  it("shows a chat whose plan waits for a decision among those that need you", () => {
    const plan = makeChat("p", { pin_order: 1, status: "waiting", plan_ready: true, action_summary: "A plan is ready to read" });
    expect(keysOf([makeChat("a", { pin_order: 2 }), plan])).toEqual([
      ["needs", "p"],
      ["pinned", "a"],
    ]);
    expect([shownStatus(plan), subtitle(plan, "Sable")]).toEqual(["requires_action", "A plan is ready to read"]);
  });

  it("sorts pinned chats by their place and leaves repeats out", () => {
    const twice = makeChat("a", { pin_order: 2 });
    expect(keysOf([twice, makeChat("b", { pin_order: 1 }), twice])).toEqual([["pinned", "b", "a"]]);
  });

  it("nests subagents to any depth, and hangs one with a missing parent on the root", () => {
    const root = makeChat("r", {
      children: [makeChat("c", { parent_chat_id: "b" }), makeChat("b", { parent_chat_id: "r" }), makeChat("lost", { parent_chat_id: "nobody" })],
    });
    const node = nodeOf(root);
    expect(node.children.map((child) => child.key)).toEqual(["b", "lost"]);
    expect(node.children[0]?.children.map((child) => child.key)).toEqual(["c"]);
  });
});

describe("keys in the tree", () => {
  const kid = makeChat("kid", { parent_chat_id: "a", title: "Find callers" });
  const sections = buildSections([makeChat("a", { updated_at: at(17), children: [kid] }), makeChat("b", { updated_at: at(17), title: "Docs" })], [], now);
  const open = visibleRows(sections, new Set());

  it("goes up and down over what can be seen, and stops at the ends", () => {
    expect(open.map((row) => row.key)).toEqual(["today", "a", "kid", "b"]);
    expect(treeMove(open, "a", "ArrowDown")).toEqual({ focus: "kid" });
    expect(treeMove(open, "b", "ArrowDown")).toBeNull();
    expect(treeMove(open, "today", "ArrowUp")).toBeNull();
    expect(treeMove(open, "a", "End")).toEqual({ focus: "b" });
    expect(treeMove(open, "b", "Home")).toEqual({ focus: "today" });
  });

  it("closes with Left, then goes to the parent; opens with Right, then goes to the first child", () => {
    expect(treeMove(open, "a", "ArrowLeft")).toEqual({ close: "a" });
    expect(treeMove(open, "kid", "ArrowLeft")).toEqual({ focus: "a" });
    const folded = visibleRows(sections, new Set(["a"]));
    expect(folded.map((row) => row.key)).toEqual(["today", "a", "b"]);
    expect(treeMove(folded, "a", "ArrowLeft")).toEqual({ focus: "today" });
    expect(treeMove(folded, "a", "ArrowRight")).toEqual({ open: "a" });
    expect(treeMove(open, "a", "ArrowRight")).toEqual({ focus: "kid" });
    expect(treeMove(open, "b", "ArrowRight")).toBeNull();
  });

  it("finds the next row that begins with a letter", () => {
    expect(treeMove(open, "a", "d")).toEqual({ focus: "b" });
    expect(treeMove(open, "b", "F")).toEqual({ focus: "kid" });
    expect(treeMove(open, "a", "z")).toBeNull();
  });
});

describe("the second line of a row", () => {
  it("says first what is needed, then why it failed, what it does, its summary, its model", () => {
    const error = { message: "The provider refused the key", kind: "auth", detail: null, provider: null, retryable: false, status_code: 401 };
    const all = { action_summary: "Approve: git push", last_error: error, activity: "Running pytest", last_turn_summary: "Done" };
    expect(subtitle(makeChat("a", { ...all, status: "requires_action" }), "Sable")).toBe("Approve: git push");
    expect(subtitle(makeChat("a", { ...all, status: "error" }), "Sable")).toBe("The provider refused the key");
    const held = { ...error, kind: "queue_held", message: "The queue is held" };
    expect(subtitle(makeChat("a", { ...all, status: "error", last_error: held }), "Sable")).toBe("Stopped by you, queue held");
    expect(subtitle(makeChat("a", { ...all, status: "running" }), "Sable")).toBe("Running pytest");
    expect(subtitle(makeChat("a", { ...all, status: "waiting" }), "Sable")).toBe("Done");
    expect(subtitle(makeChat("a", { status: "waiting" }), "Sable")).toBe("Sable");
  });

  it("shows a subagent that waits as done", () => {
    expect(shownStatus(makeChat("kid", { parent_chat_id: "a", status: "waiting" }))).toBe("done");
    expect(shownStatus(makeChat("a", { status: "waiting" }))).toBe("waiting");
  });
});

describe("labels of a row", () => {
  it("leave out what only an editor reads, and name its directory briefly", () => {
    const labels = { "acp/cwd": "/home/ada/shop/", "acp/session": "4ab76b1c", team: "web", urgent: "" };
    const shown = shownLabels({ labels } as unknown as ListChat);
    expect(shown.map(([key, value]) => labelText(key, value))).toEqual(["shop", "web", "urgent"]);
    expect(labelText("acp/cwd", "/")).toBe("/");
  });
});

describe("moving pinned chats", () => {
  const pinned = [makeChat("a", { pin_order: 1 }), makeChat("b", { pin_order: 2 }), makeChat("c", { pin_order: 3 })];

  it("changes only the places that differ", () => {
    expect(pinMoves(pinned, "b", 0)).toEqual([
      { id: "b", pin_order: 1 },
      { id: "a", pin_order: 2 },
    ]);
    expect(pinMoves(pinned, "a", 0)).toEqual([]);
    expect(pinMoves(pinned, "gone", 0)).toEqual([]);
  });
});

describe("filters in the address", () => {
  it("reads what it wrote, and keeps the rest of the query", () => {
    const filters = { archived: true, status: "error" as const, labels: ["team:blue", "kind:bug"], unread: true, source: "shared" as const };
    const search = writeFilters("panel=runs&status=waiting", filters);
    expect(new URLSearchParams(search).get("panel")).toBe("runs");
    expect(readFilters(search)).toEqual(filters);
    expect(countFilters(filters)).toBe(6);
  });

  it("leaves unknown values out", () => {
    expect(readFilters("status=exploded&source=all&label=nocolon&archived=1")).toEqual(NO_FILTERS);
  });

  it("writes nothing when no filter is set", () => {
    expect(writeFilters("archived=true&label=a:b", NO_FILTERS)).toBe("");
  });
});

import { describe, expect, it } from "vitest";
import type { ChatState, LiveParts, Part } from "@/chat-state/types";
import { call, callDelta, chat, live, message, result, resultDelta, text, thought } from "../testing";
import type { Row } from "./row";
import { RowModel, rows } from "./rows";

const read = (id: string) => [
  message(Number(id), "assistant", call(`c${id}`, "read_file", { path: `/a/${id}.py` })),
  message(Number(id) + 1, "tool", result(`c${id}`, "read_file", { content: "1\tx", total_lines: 1 })),
];
const question = message(1, "user", text("why?"));
const notice = (id: number, code: string) => message(id, "system", { type: "notice", code, text: "It happened.", detail: {} });
const cut = (id: number) => ({ ...message(id, "assistant", text("so")), finish_reason: "length" });
const failed = { message: "Refused.", kind: "auth", detail: null, provider: "p", retryable: false, status_code: 401 };
const retry = {
  attempt: 1,
  delay_ms: 8000,
  error: "Overloaded.",
  kind: "overloaded",
  provider: null,
  status_code: 529,
  detail: null,
  retrying_at: null,
};

/** One word or two for each row, so that a table shows a whole timeline. */
function brief(row: Row): string {
  switch (row.kind) {
    case "tool":
      return `${row.call.name}:${row.call.state}`;
    case "reads":
      return `reads:${row.calls.length}`;
    case "mark":
      return `mark:${row.mark.type}${row.mark.type === "notice" && row.mark.canContinue ? "+" : ""}`;
    case "note":
      return `note:${row.note}${row.canContinue ? "+" : ""}`;
    case "callout":
      return `callout:${row.callout.type}`;
    case "activity":
      return `activity:${row.activity}`;
    case "prose":
      return row.isLive ? "prose~" : "prose";
    case "reasoning":
      return row.isLive ? "reasoning~" : "reasoning";
    case "user":
      return row.isSteering ? "user:steers" : row.pending ? "user:pending" : "user";
    default:
      return row.kind;
  }
}

const TABLE: readonly (readonly [string, ChatState, string])[] = [
  ["an empty chat has no rows", chat([]), ""],
  ["question and answer", chat([question, message(2, "assistant", text("so"))]), "user prose"],
  [
    "a notice is a quiet line, and an answer before it is still the last one",
    chat([question, cut(2), notice(3, "model_replaced")]),
    "user prose note:length+ mark:notice",
  ],
  [
    "the user may send a chat on whose last notice says that the turn ended early",
    chat([question, message(2, "assistant", text("so")), notice(3, "step_limit")]),
    "user prose mark:notice+",
  ],
  [
    "a message after the notice takes the offer away",
    chat([question, message(2, "assistant", text("so")), notice(3, "step_limit"), message(4, "user", text("on"))]),
    "user prose mark:notice user",
  ],
  [
    "a message steers though a notice stands before it",
    chat([question, ...read("2"), notice(4, "model_replaced"), message(5, "user", text("also"))]),
    "user reads:1 mark:notice user:steers",
  ],
  ["blank text is left out", chat([question, message(2, "assistant", text(" \n"), text("so"))]), "user prose"],
  ["a thought comes before its answer", chat([question, message(2, "assistant", thought("**Look**\nhm", 0, 6), text("so"))]), "user reasoning prose"],
  ["reads in a row become one line", chat([question, ...read("2"), ...read("4"), ...read("6")]), "user reads:3"],
  ["text between reads parts them", chat([question, ...read("2"), message(4, "assistant", text("now")), ...read("6")]), "user reads:1 prose reads:1"],
  [
    "a failed read is a card",
    chat([
      message(2, "assistant", call("c", "read_file", { path: "/a" })),
      message(3, "tool", result("c", "read_file", { error: "no such file" }, { is_error: true })),
    ]),
    "read_file:failed",
  ],
  [
    "a command that exits with 1 has failed",
    chat([message(2, "assistant", call("c", "execute", { command: "false" })), message(3, "tool", result("c", "execute", { success: false, exit_code: 1 }))]),
    "execute:failed",
  ],
  [
    "a command in the background goes on",
    chat([
      message(2, "assistant", call("c", "execute", { command: "serve &" })),
      message(3, "tool", result("c", "execute", { success: true, running: true, backgrounded: true })),
    ]),
    "execute:background",
  ],
  ["a call without a result runs while the chat is busy", chat([message(2, "assistant", call("c", "execute", {}))], { status: "running" }), "execute:running"],
  ["a call without a result was interrupted when the chat is idle", chat([message(2, "assistant", call("c", "execute", {}))]), "execute:interrupted"],
  [
    "only calls of the last answer can run",
    chat([message(2, "assistant", call("c", "execute", {})), question, message(5, "assistant", text("x"))], {
      status: "running",
    }),
    "execute:interrupted user prose activity:working",
  ],
  [
    "a requested call waits",
    chat([message(2, "assistant", call("c", "open_page", {}))], {
      status: "requires_action",
      requestedCalls: [{ tool_call_id: "c", tool_name: "open_page" }],
    }),
    "open_page:waiting",
  ],
  [
    "a call that was cut off never runs",
    chat([message(2, "assistant", { ...call("c", "write_file", undefined), cut: true })], { status: "running" }),
    "write_file:interrupted activity:working",
  ],
  [
    "an interrupted call says so by a field, whatever the words of its error",
    chat([
      message(2, "assistant", call("c", "execute", {}), call("d", "execute", {})),
      message(3, "tool", result("c", "execute", { error: "any words" }, { is_error: true, interrupted: true })),
      message(4, "tool", result("d", "execute", { error: "The tool call was interrupted before…" }, { is_error: true })),
    ]),
    "execute:interrupted execute:failed",
  ],
  [
    "a message between a result and the next answer steers",
    chat([question, ...read("2"), message(4, "user", text("also")), message(5, "assistant", text("ok"))]),
    "user reads:1 user:steers prose",
  ],
  [
    "a message after an interrupted call does not steer",
    chat([
      message(2, "assistant", call("c", "execute", {})),
      message(3, "tool", result("c", "execute", { error: "any words", interrupted: true, running: true })),
      message(4, "user", text("no")),
    ]),
    "execute:interrupted user",
  ],
  ["an answer that was stopped says so", chat([question, { ...message(2, "assistant", text("half")), finish_reason: null }]), "user prose mark:stopped"],
  [
    "a turn that was stopped between two steps says so, and the next message does not steer",
    chat([question, ...read("2"), notice(4, "stopped"), message(5, "user", text("on"))]),
    "user reads:1 mark:stopped user",
  ],
  [
    "a cut answer can be continued while it is the last",
    chat([question, { ...message(2, "assistant", text("half")), finish_reason: "length" }]),
    "user prose note:length+",
  ],
  [
    "an older cut answer cannot be continued",
    chat([{ ...message(2, "assistant", text("half")), finish_reason: "length" }, message(3, "user", text("go on"))]),
    "prose note:length user",
  ],
  [
    "a summary is a mark",
    chat([
      { ...message(2, "assistant", call("s", "chat_summarized", {})), finish_reason: null },
      message(3, "tool", result("s", "chat_summarized", { summary: "So far…", context_tokens: 148000 })),
    ]),
    "mark:compacted",
  ],
  [
    "a message after a summary does not steer",
    chat([
      message(2, "assistant", call("s", "chat_summarized", {})),
      message(3, "tool", result("s", "chat_summarized", { summary: "So far…" })),
      message(4, "user", text("go on")),
    ]),
    "mark:compacted user",
  ],
  [
    "files of the workspace are a mark",
    chat([message(1, "user", { type: "context-file", context_file_path: "/w/AGENTS.md", context_file_truncated: false, context_file_agent_id: null })]),
    "mark:context",
  ],
  ["a busy chat that says nothing works", chat([question], { status: "running" }), "user activity:working"],
  ["no worker has the chat yet", chat([question], { status: "pending" }), "user activity:pending"],
  [
    "live text has the caret and needs no other sign",
    chat([question], { status: "running", live: live([thought("hm"), text("so f")]) }),
    "user reasoning prose~",
  ],
  ["stopping is said beside the live text", chat([question], { status: "interrupting", live: live([text("so f")]) }), "user prose~ activity:interrupting"],
  ["arguments that are being written", chat([question], { status: "running", live: live([callDelta("c", "execute", '{"comm')]) }), "user execute:streaming"],
  [
    "what a failed call has said stays above the retry, without its calls",
    chat([question], { status: "running", retry, live: live([text("so f"), callDelta("c", "execute", "{")]) }),
    "user prose callout:retrying",
  ],
  [
    "an answer that broke off says so, and the error after it has the button",
    chat([question, { ...message(2, "assistant", text("half")), finish_reason: "error" }], { status: "error", error: failed }),
    "user prose note:error callout:failed",
  ],
  ["an error is the last row", chat([question], { status: "error", error: failed }), "user callout:failed"],
  ["a held queue is no failure", chat([question], { status: "error", error: { ...failed, kind: "queue_held" } }), "user callout:held"],
  [
    "a call whose machine is away says so below it",
    chat([question, message(2, "assistant", call("c", "execute", {}))], {
      status: "running",
      waitingCalls: [{ tool_call_id: "c", waits_for: "The machine is not connected." }],
    }),
    "user execute:running callout:waits",
  ],
  ["a retry that is over shows nothing", chat([question], { status: "waiting", retry }), "user"],
];

describe("a recording of a desktop", () => {
  const file = (media_type: string, name: string) => ({ type: "file", media_type, file_id: name, name }) as Part;
  const waited = (...files: Part[]) => [message(2, "assistant", call("c", "wait_agent", {})), message(3, "tool", result("c", "wait_agent", {}), ...files)];

  it("is shown with its poster below the call that waited for it", () => {
    const found = rows(chat(waited(file("video/mp4", "recording.mp4"), file("image/jpeg", "recording.jpg"))));
    expect(found.map((row) => row.kind)).toEqual(["tool", "files"]);
  });

  it("other files of tools are on the cards of their calls", () => {
    expect(rows(chat(waited(file("image/png", "a.png")))).map((row) => row.kind)).toEqual(["tool"]);
  });
});

describe("a call that was cut off", () => {
  it("shows its arguments as far as the model wrote them", () => {
    const cutCall = { ...call("c", "execute", {}), args: undefined, args_text: '{"command":"rm -r', cut: true };
    const error = "The tool call was interrupted before it was sent to the tool, so it never ran.";
    const [row] = rows(chat([message(2, "assistant", cutCall), message(3, "tool", result("c", "execute", { error }, { is_error: true, interrupted: true }))]));
    if (row?.kind !== "tool") throw new Error("The call has no row.");
    expect([row.call.state, row.call.isCut, row.call.args]).toEqual(["interrupted", true, { command: "rm -r" }]);
  });
});

describe("two messages that use one call id", () => {
  const said = (id: number, command: string, output: string) => [
    message(id, "assistant", call("call_0", "execute", { command })),
    message(id + 1, "tool", result("call_0", "execute", { success: true, output })),
  ];
  const shown = (list: readonly Row[]) =>
    list.flatMap((row) =>
      row.kind === "tool" ? [[row.call.args?.command, (row.call.result as { output?: string } | undefined)?.output, row.call.state]] : [],
    );

  it("are two calls, each with its own result and key", () => {
    const list = rows(chat([question, ...said(2, "one", "1"), ...said(4, "two", "2")]));
    expect(shown(list)).toEqual([
      ["one", "1", "done"],
      ["two", "2", "done"],
    ]);
    expect(new Set(list.map((row) => row.key)).size).toBe(list.length);
  });

  it("are two calls while the second is written, and while it runs", () => {
    const before = [question, ...said(2, "one", "1")];
    const written = rows(chat(before, { status: "running", live: live([callDelta("call_0", "execute", '{"command":"two"')]) }));
    expect(shown(written)).toEqual([
      ["one", "1", "done"],
      ["two", undefined, "streaming"],
    ]);
    const committed = message(4, "assistant", call("call_0", "execute", { command: "two" }));
    const running = rows(chat([...before, committed], { status: "running", live: live([resultDelta("call_0", "execute", "2\n")]) }));
    expect(shown(running)).toEqual([
      ["one", "1", "done"],
      ["two", undefined, "running"],
    ]);
    expect(running.at(-1)).toMatchObject({ call: { liveOutput: "2\n" } });
  });
});

describe("an answer that another worker begins again", () => {
  const at = (more: Pick<LiveParts, "earlier">) =>
    rows(chat([question], { status: "running", live: { historyVersion: 1, attempt: 2, seq: 1, parts: [text("The claim")], ...more } }));

  it("stays as it was read, greyed, and its calls are left out, until the new one has said as much", () => {
    const earlier = [text("The claim has to hold its rows."), call("c", "execute", {})];
    const [, said, after] = at({ earlier });
    expect(said).toMatchObject({ kind: "prose", text: "The claim has to hold its rows.", isEarlier: true, isLive: false });
    expect(after).toMatchObject({ kind: "activity" });
    expect(at({})[1]).toMatchObject({ text: "The claim", isLive: true });
  });
});

describe("rows", () => {
  it.each(TABLE)("%s", (_, state, expected) => {
    expect(rows(state).map(brief).join(" ")).toBe(expected);
  });

  it("shows what a running command has printed", () => {
    const state = chat([message(2, "assistant", call("c", "execute", { command: "make" }))], {
      status: "running",
      live: live([resultDelta("c", "execute", "one\n"), resultDelta("c", "execute", "two\n")]),
    });
    const [row, ...rest] = rows(state);
    expect(row?.kind === "tool" && row.call.liveOutput).toBe("one\ntwo\n");
    expect(rest).toEqual([]);
  });

  it("fills arguments in while the model writes them", () => {
    const parts = [callDelta("c", "execute", '{"command":"py'), callDelta("c", "execute", "test -")];
    const [row] = rows(chat([], { status: "running", live: live(parts) }));
    expect(row?.kind === "tool" && row.call.args?.command).toBe("pytest -");
  });

  it("puts a takeover after the last message before it", () => {
    const takeover = { messageId: 2, worker: "pumov", afterMs: 2100, resumedCalls: 0, version: 7 };
    const state = chat([question, message(2, "assistant", text("so")), message(3, "user", text("and"))]);
    const shown = rows(state, { takeovers: [takeover] }).map(brief);
    expect(shown).toEqual(["user", "prose", "mark:takeover", "user"]);
  });

  it("shows a message that is on its way, unless the chat is busy and queues it", () => {
    const pendingSends = [{ id: "p", text: "hi", files: [], references: [], isKept: false }];
    expect(rows(chat([]), { pendingSends }).map(brief)).toEqual(["user:pending"]);
    expect(rows(chat([question], { status: "running" }), { pendingSends }).map(brief)).not.toContain("user:pending");
  });

  it("lifts the title of a thought from its first line", () => {
    const [row] = rows(chat([message(2, "assistant", thought("## Two dispatchers\n\nThe claim…", 0, 11))]));
    expect(row).toMatchObject({ title: "Two dispatchers", text: "The claim…", durationMs: 11000 });
  });

  it("has no two rows with the same key", () => {
    for (const [name, state] of TABLE) {
      const keys = rows(state).map((row) => row.key);
      expect(new Set(keys).size, name).toBe(keys.length);
    }
  });
});

describe("keys", () => {
  const question2 = message(3, "user", text("and?"));

  it("stay the same when a live answer is committed", () => {
    const model = new RowModel();
    const parts = [thought("hm"), text("so far"), callDelta("c", "execute", "{")];
    const before = model.rows(chat([question], { status: "running", live: live(parts) }));
    const committed = message(2, "assistant", thought("hm", 0, 1), text("so far"), call("c", "execute", {}));
    const after = model.rows(chat([question, committed], { status: "running" }));
    expect(after.map((row) => row.key)).toEqual(before.map((row) => row.key));
  });

  it("stay the same when older messages are put in front", () => {
    const model = new RowModel();
    const tail = [question2, message(4, "assistant", text("so"))];
    const before = model.rows(chat(tail)).map((row) => row.key);
    const after = model.rows(chat([question, message(2, "assistant", text("x")), ...tail])).map((row) => row.key);
    expect(after.slice(2)).toEqual(before);
  });

  it("differ between two answers of one episode", () => {
    const model = new RowModel();
    const first = message(2, "assistant", text("one"));
    model.rows(chat([question], { status: "running", live: live([text("one")], 7) }));
    const all = model.rows(chat([question, first], { status: "running", live: live([text("two")], 7) }));
    expect(new Set(all.map((row) => row.key)).size).toBe(all.length);
  });

  it("come from memory while only live parts change", () => {
    const model = new RowModel();
    const messages = [question, ...read("2")];
    const one = model.rows(chat(messages, { status: "running", live: live([text("a")]) }));
    const two = model.rows(chat(messages, { status: "running", live: live([text("ab")]) }));
    expect(two[0]).toBe(one[0]);
    expect(two[1]).toBe(one[1]);
  });
});

describe("rows that are made again", () => {
  const turn = (id: number) => [
    message(id, "user", text(`question ${id}`)),
    message(id + 1, "assistant", thought("hm", 0, 1), text("Look."), call(`a${id}`, "read_file", { path: "/a" }), call(`b${id}`, "grep", { pattern: "x" })),
    message(id + 2, "tool", result(`a${id}`, "read_file", { content: "1" }), result(`b${id}`, "grep", { matches: [] })),
    message(id + 3, "assistant", call(`c${id}`, "read_file", { path: "/c" })),
    message(id + 4, "tool", result(`c${id}`, "read_file", { content: "2" })),
    message(id + 5, "assistant", text(`answer ${id}`)),
  ];
  const history = Array.from({ length: 50 }, (_, index) => turn(index * 10 + 1)).flat();
  const takeovers = [{ messageId: 21, worker: "pumov", afterMs: 10, resumedCalls: 0, version: 7 }];

  /** The keys of rows of `after` that are not objects of `before`. */
  const made = (before: readonly Row[], after: readonly Row[]) => {
    const known = new Set(before);
    return after.filter((row) => !known.has(row)).map((row) => row.key);
  };
  /** The states follow each other in one timeline. */
  const madeAfter = (one: ChatState, two: ChatState) => {
    const model = new RowModel();
    return made(model.rows(one, { takeovers }), model.rows(two, { takeovers }));
  };
  const running = { status: "running" } as const;

  it("a committed message makes its own row", () => {
    expect(madeAfter(chat(history), chat([...history, message(600, "user", text("and?"))]))).toEqual(["m600"]);
  });

  it("an answer that is committed makes its own rows", () => {
    const before = chat(history, { ...running, live: live([thought("hm"), text("so")]) });
    const after = chat([...history, message(600, "assistant", thought("hm"), text("so"))]);
    expect(madeAfter(before, after)).toEqual(["live-1-1-r0", "live-1-1-t0"]);
  });

  it("a result makes the row of its call", () => {
    const asked = [...history, message(600, "assistant", text("Now."), call("x", "execute", { command: "make" }), call("y", "execute", { command: "ls" }))];
    const done = message(601, "tool", result("x", "execute", { exit_code: 0 }));
    expect(madeAfter(chat(asked, running), chat([...asked, done], running))).toEqual(["m600-c-x"]);
  });

  it("a word of a running command makes the row of its call", () => {
    const asked = [...history, message(600, "assistant", text("Now."), call("x", "execute", { command: "make" }), call("y", "execute", { command: "ls" }))];
    const said = chat(asked, { ...running, live: live([resultDelta("y", "execute", "a.txt")]) });
    expect(madeAfter(chat(asked, running), said)).toEqual(["m600-c-y"]);
  });

  it("older messages that are put in front make their own rows only", () => {
    const [first, ...rest] = history.slice(60);
    if (first === undefined) throw new Error("There is no history.");
    const keys = madeAfter(chat([first, ...rest]), chat(history));
    expect(keys.every((key) => Number(/^m(\d+)/.exec(key)?.[1] ?? 0) < first.id || key.startsWith("takeover"))).toBe(true);
  });

  it("a message that is deleted makes no row", () => {
    expect(madeAfter(chat(history), chat(history.slice(0, -1)))).toEqual([]);
  });

  it("a status makes no row but its own", () => {
    expect(madeAfter(chat(history), chat(history, { status: "pending" }))).toEqual(["end"]);
  });
});

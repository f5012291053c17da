/** Every kind of row on one page, for development: /gallery.html#live, and #huge and #stream to measure. */
import "@fontsource-variable/inter/wght.css";
import "@fontsource-variable/jetbrains-mono/wght.css";
import "@/styles/index.css";
import { useEffect, useMemo, useState } from "react";
import { createRoot } from "react-dom/client";
import type { ChatState, Message, Part } from "@/chat-state/types";
import { ActionsProvider, NO_ACTIONS, type TimelineActions } from "./actions";
import { RowList } from "./list/row-list";
import type { PendingSend, Takeover } from "./rows/row";
import { RowModel } from "./rows/rows";
import { at, call, callDelta, chat, live, message, result, text, thought } from "./testing";
import { OpenRowsProvider } from "./tools/frame";

const WORDS =
  "the claim now holds its rows inside the transaction that marks them as sent so **a crash** is harmless and `CLAIM` ends in a lock\n\n- and\n- so on\n\n".split(
    " ",
  );
const OLDER = { hasMore: false, isLoading: false, error: null, load: () => undefined };

const ACTIONS: TimelineActions = {
  ...NO_ACTIONS,
  buildLog: () =>
    Promise.resolve({
      hasEnded: true,
      lines: ["template python-3.13, sandbox on this host", "cloning ledger-api at 9c41e07", "uv sync --frozen: 61 packages", "agent connected"].map(
        (line, id) => ({
          id,
          at: new Date(id * 3100).toISOString(),
          level: "info" as const,
          text: line,
        }),
      ),
    }),
};

function huge(count: number): ChatState {
  const messages = Array.from({ length: count }, (_, index) =>
    index % 2 === 0
      ? message(index + 1, "user", text(`Question ${index}: why is it so?`))
      : message(index + 1, "assistant", text(`Answer **${index}**.\n\n${WORDS.slice(0, 20 + (index % 30)).join(" ")}\n\n- one\n- two`)),
  );
  return chat(messages);
}

/** Adds words to the live answer, 50 a second. */
function useStream(base: ChatState, isOn: boolean): ChatState {
  const [count, setCount] = useState(0);
  useEffect(() => {
    if (!isOn) return;
    const timer = setInterval(() => setCount((old) => old + 1), 20);
    return () => clearInterval(timer);
  }, [isOn]);
  return useMemo(() => {
    if (!isOn) return base;
    const words = Array.from({ length: count }, (_, index) => WORDS[index % WORDS.length] ?? "");
    return { ...base, status: "running", live: live([text(words.join(" "))]) };
  }, [base, count, isOn]);
}

function Gallery() {
  const name = window.location.hash.slice(1) || "live";
  const [base] = useState(() => STATES[name] ?? huge(name === "stream" || name === "huge" ? 10_000 : 0));
  const state = useStream(base, name === "stream");
  const [model] = useState(() => new RowModel());
  const rows = useMemo(
    () => model.rows(state, { ...(name === "live" ? { takeovers: TAKEOVERS } : {}), pendingSends: name === "sending" ? PENDING : [] }),
    [model, state, name],
  );
  return (
    <ActionsProvider value={ACTIONS}>
      <OpenRowsProvider>
        <main className="app-chat" style={{ height: "100vh", display: "flex", flexDirection: "column" }}>
          <RowList chatId="" rows={rows} older={{ ...OLDER, hasMore: state.hasOlder }} promptAfter={null} markedMessageId={null} />
        </main>
      </OpenRowsProvider>
    </ActionsProvider>
  );
}

const root = document.getElementById("root");
if (root !== null) createRoot(root).render(<Gallery />);

// A chat with every kind of row, for the gallery.

const DIFF = `--- a/src/ledger/dispatch.py
+++ b/src/ledger/dispatch.py
@@ -18,4 +18,5 @@
 async def drain(pool, n=100):
-    rows = await pool.fetch(CLAIM, n)
-    for row in rows:
-        await send(row)
+    async with pool.tx() as tx:
+        rows = await tx.fetch(CLAIM, n)
+        for row in rows:
+            await send(row, key=row["id"])
`;
const PYTEST = `    assert sent == Counter({e.id: 1 for e in events})
\u001b[31mE   AssertionError: 17 of 500 events were sent twice\u001b[0m
\u001b[1m1 failed\u001b[0m, 11 passed in 3.94s`;
const SOAK =
  "round 07  500 events  \u001b[32m0 duplicates\u001b[0m  2.9 s\nround 08  500 events  \u001b[32m0 duplicates\u001b[0m  3.1 s\nround 09  312 events  …";

let nextId = 0;
const say = (role: Message["role"], ...parts: Part[]): Message => message((nextId += 1), role, ...parts);

function ran(id: string, name: string, args: unknown, value: unknown, seconds = 0.1, more = {}): Message[] {
  return [say("assistant", call(id, name, args, 0)), say("tool", result(id, name, value, { created_at: at(seconds), ...more }))];
}

const MESSAGES: readonly Message[] = [
  ...ran("s", "chat_summarized", {}, { summary: "The user looks for **double deliveries**.", context_tokens: 148_000 }),
  say("user", text("Since Tuesday’s deploy some customers get the same webhook twice. Find out why, fix it, and add a test that fails without the fix."), {
    type: "file",
    media_type: "text/csv",
    file_id: "6a1f0c9e-0000-4000-8000-000000000001",
    name: "deliveries-tue.csv",
  }),
  say("assistant", thought("I should look at the dispatcher first.", 0, 6)),
  ...ran("w", "create_workspace", { template_id: "x" }, { created: true, workspace_name: "ledger-api-7f3c", build_id: "b" }, 14),
  ...ran("r1", "read_file", { path: "/w/src/ledger/dispatch.py" }, { content: "1\timport asyncio", total_lines: 80, lines_read: 80 }, 0.03),
  ...ran("r2", "read_file", { path: "/w/src/ledger/claims.sql" }, { content: "1\tSELECT", total_lines: 12, lines_read: 12 }, 0.03),
  ...ran("r3", "read_file", { path: "/w/tests/test_dispatch.py" }, { content: "1\timport", total_lines: 210, lines_read: 210 }, 0.04),
  ...ran(
    "g",
    "execute",
    { command: 'rg -n "claim_batch" src tests' },
    { success: true, exit_code: 0, output: "src/a.py:1: claim_batch", wall_duration_ms: 80 },
  ),
  say(
    "assistant",
    thought(
      "**Two dispatchers overlap during a deploy**\n\nThe claim query reads unsent rows and marks them only after the request went out. Nothing stops a second dispatcher from reading the same rows in between.\n\nOn a normal day there is one dispatcher.",
      0,
      11,
    ),
  ),
  ...ran(
    "a",
    "spawn_agent",
    { prompt: "Find other callers of claim_batch", title: "Find other callers of claim_batch" },
    { chat_id: "x", title: "Find other callers of claim_batch", status: "running" },
  ),
  ...ran("t", "execute", { command: "pytest tests/test_dispatch.py -q" }, { success: false, exit_code: 1, output: PYTEST, wall_duration_ms: 4200 }),
  say(
    "assistant",
    text(
      "The test reproduces it: two dispatchers, 500 events, 17 duplicates. The claim has to hold its rows until they are marked as sent, so I will put both into one transaction and let the second dispatcher skip what is locked.",
    ),
  ),
  ...ran(
    "e0",
    "edit_files",
    { files: [{ path: "src/ledger/claims.sql", edits: [] }] },
    { error: "The text to replace was found 2 times, in lines 8 and 31. Nothing of this call was applied." },
    1,
    { is_error: true },
  ),
  ...ran(
    "d",
    "execute",
    { command: "docker compose up -d postgres" },
    { error: "stopped before it ended", interrupted: true, running: true, wall_duration_ms: 12_000, output: "Pulling postgres…" },
  ),
  say("user", text("No containers here, use the test database that is already running. And keep the `Idempotency-Key` header, receivers rely on it.")),
  ...ran("e", "edit_files", { files: [{ path: "src/ledger/dispatch.py" }] }, { ok: true, files: [{ path: "src/ledger/dispatch.py", diff: DIFF }] }),
  say("user", text("Call the new test `test_overlap`.")),
  ...ran("wr", "write_file", { path: "/w/CHANGES.md", content: "# Fixed\n\n- Webhooks are sent once.\n" }, { ok: true }),
  ...ran("m", "github__create_issue", { title: "Slow receivers", body: "…" }, { output: "Created #41" }, 0.9, { mcp_server_config_id: "github" }),
  ...ran("q", "web_search", { query: "postgres skip locked" }, { results: [{ url: "https://www.postgresql.org/docs/", title: "SELECT" }] }),
  ...ran(
    "soak",
    "execute",
    { command: "python -m ledger.soak --workers 2 &", model_intent: "soak test" },
    { success: true, running: true, backgrounded: true, background_process_id: "p-7", output: SOAK, note: "…" },
  ),
];

const REPLY =
  "While the soak test runs, here is what was wrong and what changed:\n\n1. **The claim now holds its rows.** `CLAIM` ends in `FOR UPDATE SKIP LOCKED`, inside the transaction that marks them as sent.\n2. **Receivers can tell a repeat.** Each delivery carries its event id as key.\n\n```diff\n@@ -18,2 +18,2 @@\n async def drain(pool):\n-    rows = await pool.fetch(CLAIM)\n+    rows = await tx.fetch(CLAIM)\n```\n\nSo a crash between sending and commi";

const RICH = `## What changed

| case | before | after |
|:-----|-------:|------:|
| p95 | 3.1 s | 0.8 s |
| duplicates | 17 | 0 |

- [x] reproduce in a test
- [ ] watch the next deploy

> Nothing stops a second dispatcher.

\`\`\`python
async def drain(pool, n=100):
    async with pool.tx() as tx:
        rows = await tx.fetch(CLAIM, n)  # holds them
        return len(rows)
\`\`\`

See [the manual](https://www.postgresql.org/docs/) and ![a chart](https://x.test/chart.png). <b>HTML is text.</b>`;

const TAKEOVERS: readonly Takeover[] = [{ messageId: nextId - 23, worker: "b2", afterMs: 2100, resumedCalls: 1, version: 40 }];

const PENDING: readonly PendingSend[] = [
  { id: "p1", text: "Is there an index that the lock can use?", files: [], references: [], isKept: false },
  { id: "p2", text: "One more, without a connection.", files: [], references: [], isKept: true },
];

const retry = {
  attempt: 1,
  delay_ms: 8000,
  error: "The provider is limiting the rate of requests.",
  kind: "rate_limit",
  status_code: 429,
  retrying_at: new Date(Date.now() + 8000).toISOString(),
  detail: "too many requests",
};
const failed = { message: "Main gateway refused the API key. Check the key and what it may do.", kind: "auth", status_code: 401, detail: "invalid x-api-key" };
const QUESTIONS = {
  questions: [
    {
      header: "Place",
      question: "Where should archived invoices go?",
      options: [
        { label: "A second schema", description: "Same database, still easy to query" },
        { label: "Files in object storage", description: "Cheapest; restoring takes minutes" },
      ],
    },
    {
      header: "PDFs",
      question: "What happens to their PDFs?",
      options: [
        { label: "Keep them", description: "About 40 GB stays" },
        { label: "Delete them", description: "They can be made again" },
      ],
    },
  ],
};

/** States by name, as the gallery shows them. */
const STATES: Readonly<Record<string, ChatState>> = {
  live: chat(MESSAGES, { status: "running", live: live([text(REPLY)]), hasOlder: true }),
  retry: chat(MESSAGES, { status: "running", retry }),
  failed: chat(MESSAGES.slice(0, 14), { status: "error", error: failed }),
  held: chat(MESSAGES.slice(0, 14), { status: "error", error: { message: "", kind: "queue_held" } }),
  pending: chat(MESSAGES.slice(0, 3), { status: "pending" }),
  rich: chat([MESSAGES[2] ?? say("user"), { ...say("assistant", text(RICH)), finish_reason: "length" }]),
  writing: chat(MESSAGES.slice(0, 3), {
    status: "running",
    live: live([
      thought("Looking at the claim query, which reads unsent rows."),
      callDelta("x", "write_file", '{"path":"/w/a.py","content":"import asyncio\\n\\nasync def drain(pool'),
    ]),
  }),
  asking: chat([
    ...MESSAGES.slice(0, 3),
    say("assistant", text("The plan is on the right. Two things are yours to decide."), call("ask", "ask_user_question", QUESTIONS)),
    say("tool", result("ask", "ask_user_question", QUESTIONS)),
  ]),
  sending: chat(MESSAGES.slice(0, 3)),
  stopped: chat([...MESSAGES.slice(0, 3), { ...say("assistant", text("The claim has to hold")), finish_reason: null }]),
};

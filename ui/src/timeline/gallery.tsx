/** Every kind of row on one page, for development: /gallery.html#live, and #huge and #stream to measure. */
import "@fontsource-variable/inter/wght.css";
import "@fontsource-variable/jetbrains-mono/wght.css";
import "@/styles/index.css";
import { useEffect, useMemo, useState } from "react";
import { createRoot } from "react-dom/client";
import type { ChatState } from "@/chat-state/types";
import { ActionsProvider, NO_ACTIONS, type TimelineActions } from "./actions";
import { chat, live, message, text } from "./fixtures/builders";
import { PENDING, STATES, TAKEOVERS } from "./fixtures/webhooks";
import { RowList } from "./list/row-list";
import { RowModel } from "./rows/rows";
import { OpenRowsProvider } from "./tools/open-rows";

const WORDS = "the claim now holds its rows inside the transaction that marks them as sent so **a crash** is harmless and `CLAIM` ends in a lock\n\n- and\n- so on\n\n".split(" ");
const OLDER = { hasMore: false, isLoading: false, error: null, load: () => undefined };

const ACTIONS: TimelineActions = {
  ...NO_ACTIONS,
  buildLog: () =>
    Promise.resolve({
      hasEnded: true,
      lines: ["template python-3.13, sandbox on this host", "cloning ledger-api at 9c41e07", "uv sync --frozen: 61 packages", "agent connected"].map((line, id) => ({
        id,
        at: new Date(id * 3100).toISOString(),
        level: "info" as const,
        text: line,
      })),
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

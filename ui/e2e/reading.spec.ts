/** What only a browser lays out: marks and tables that fit, and a place of reading that stays. */
import { expect, expectAccessible, PHONE, test } from "./test";
import { type ImportedMessage, importChat, longTranscript, text } from "./transcripts";

const call = (id: string, output: string): ImportedMessage[] => [
  { role: "assistant", content: [{ type: "tool-call", tool_call_id: id, tool_name: "execute", args: { command: "make" } }] },
  { role: "tool", content: [{ type: "tool-result", tool_call_id: id, tool_name: "execute", result: { success: true, exit_code: 0, output } }] },
];

test("on a phone a long notice wraps, words of tables stay whole, and emphasis is italic", async ({ page, chat, server }) => {
  await page.setViewportSize(PHONE);
  const table = "| Name | What |\n|---|---|\n| internationalization | Reads *all* of the configuration and then some more |";
  const id = await importChat(server, "Marks", [
    { role: "user", content: [text("hello")] },
    { role: "assistant", content: [text(table)] },
    { role: "assistant", content: [{ type: "tool-call", tool_call_id: "s", tool_name: "chat_summarized", args: {} }] },
    {
      role: "tool",
      content: [
        {
          type: "tool-result",
          tool_call_id: "s",
          tool_name: "chat_summarized",
          result: { summary: `A ${"x".repeat(400)}`, context_tokens: 184_000, kept_messages: 3 },
        },
      ],
    },
  ]);
  await chat.open(id);
  const mark = chat.log.getByRole("note").filter({ hasText: "Context compacted" });
  const words = await mark.locator("span").first().boundingBox();
  expect(words?.width, "the text has the width of the row").toBeGreaterThan(280);
  const cell = await chat.log.getByRole("cell", { name: "internationalization" }).boundingBox();
  expect(cell?.height, "one word, and it is not broken: its row is as high as the other cell").toBeLessThan(140);
  const lines = await chat.log.getByRole("cell", { name: "internationalization" }).evaluate((one) => {
    const range = document.createRange();
    range.selectNodeContents(one);
    return range.getClientRects().length;
  });
  expect(lines).toBe(1);
  expect(await chat.log.locator("em").evaluate((one) => getComputedStyle(one).fontStyle)).toBe("italic");
});

test("a card that is opened stays under the pointer, and Back leads to the place that was read", async ({ page, chat, server }) => {
  const output = Array.from({ length: 60 }, (_, line) => `line ${line}`).join("\n");
  const id = await importChat(server, "Read here", [...longTranscript(40), ...call("c", output), { role: "assistant", content: [text("Done.")] }]);
  const other = await importChat(server, "Elsewhere", longTranscript(4));
  await chat.open(id);
  await expect(chat.log).toContainText("Done.");
  const card = chat.log.locator("summary").filter({ hasText: "make" });
  const before = await card.boundingBox();
  await card.click();
  await expect(chat.log).toContainText("line 59");
  await expect(async () => expect((await card.boundingBox())?.y).toBeCloseTo(before?.y ?? 0, 0)).toPass({ timeout: 3000 });

  await chat.log.evaluate((log) => log.scrollBy(0, -900));
  const read = await chat.log.evaluate((log) => {
    const middle = log.getBoundingClientRect().top + log.clientHeight / 2;
    return (
      [...log.querySelectorAll("article")].find((row) => row.getBoundingClientRect().bottom > middle && /^(?:Answer|Question)/.test(row.textContent))
        ?.textContent ?? ""
    );
  });
  const readRow = chat.log.getByRole("article").filter({ hasText: read });
  await expect(readRow).toBeInViewport();
  const place = await readRow.boundingBox();
  await chat.sidebar
    .getByRole("treeitem", { name: /Elsewhere/ })
    .first()
    .click();
  await page.waitForURL(new RegExp(other));
  await expect(chat.log).toContainText("Answer 4.");
  await page.goBack();
  await expect(readRow).toBeInViewport();
  await expect(async () => expect(Math.abs(((await readRow.boundingBox())?.y ?? 0) - (place?.y ?? 0))).toBeLessThan(24)).toPass({ timeout: 5000 });
});

const NOTATION = [
  "A mistake: $\\nope{$. Prices of $5 and $10 stay. The area is $\\pi r^2$, and:\n\n$$\n\\int_0^1 x^2\\,dx = \\frac{1}{3}, \\qquad \\sqrt{\\boxed{2}}\n$$",
  "```mermaid\nflowchart LR\n  A[Start] --> B{Ready?}\n  B -->|yes| C[Ship it]\n  B -->|no| A\n```",
  "```mermaid\nsequenceDiagram\n  Alice->>Bob: Hello\n  Note over Bob: thinks\n  Bob-->>Alice: Hi\n```",
  '```mermaid\nflowchart LR\n  A["<img src=x onerror=alert(1)> <b>bold</b>"] --> B\n  click A href "javascript:alert(1)"\n```',
  "```mermaid\nflowchart LR\n  A --> --> B\n```",
  "A claim[^1]. ![remote](https://example.org/a.png)\n\n[^1]: Its source.",
];

test("formulas, diagrams and footnotes are drawn in both themes; a diagram shows its source by a press, and one with a mistake always", async ({
  page,
  chat,
  server,
  faults,
}) => {
  // Mermaid measures a label before it cleans it: the policy of its frame refuses what would run.
  faults.expect(/inline event handler|script-src-attr inline/);
  const id = await importChat(server, "Notation", [
    { role: "user", content: [text("show")] },
    { role: "assistant", content: [text(NOTATION.join("\n\n"))] },
  ]);
  await chat.open(id);
  const diagrams = chat.log.getByRole("group", { name: "Diagram" });
  await expect(chat.log.locator(".katex-display")).toBeVisible();
  await expect(chat.log.getByText("$\\nope{$")).toBeVisible();
  await expect(diagrams).toHaveCount(3);
  const first = diagrams.first().getByRole("img");
  expect(await first.evaluate((one: HTMLImageElement) => one.decode().then(() => one.naturalWidth))).toBeGreaterThan(200);
  await expect(chat.log.getByText("This diagram cannot be drawn.")).toBeVisible();
  expect(await page.evaluate(() => document.fonts.check("16px KaTeX_Main"))).toBe(true);
  await expectAccessible(page);
  const light = await first.getAttribute("src");
  await page.emulateMedia({ colorScheme: "dark" });
  await expect(first).not.toHaveAttribute("src", light ?? "");
  await expectAccessible(page, "dark");
  await chat.log.getByRole("button", { name: "Show the source" }).first().click();
  await expect(chat.log.getByLabel("Code, mermaid").first()).toContainText("Ready?");
  await chat.log.getByRole("button", { name: "Footnote 1", exact: true }).click();
  await expect(chat.log.getByRole("list", { name: "Footnotes" }).getByRole("listitem")).toBeFocused();
});

test("a whole chat is printed, named by its title, and saved as Markdown", async ({ page, chat, server }) => {
  const id = await importChat(server, "Für: alle/viele", longTranscript(420));
  await chat.open(id);
  await expect(chat.log).toContainText("Answer 420.");
  await page.evaluate(() => {
    const seen = window as unknown as { printed?: string };
    window.print = () => (seen.printed = `${document.title}\n${document.querySelector(".timeline-print")?.textContent ?? ""}`);
  });
  await page.getByRole("button", { name: "More", exact: true }).click();
  await page.getByRole("menuitem", { name: /^Print/ }).click();
  const printed = await page.waitForFunction(() => (window as unknown as { printed?: string }).printed);
  const words = (await printed.jsonValue()) ?? "";
  expect(words.split("\n")[0]).toBe("Für: alle/viele");
  expect(words).toContain("Question 1:");
  expect(words).toContain("Answer 420.");
  await expect(page.locator(".timeline-print")).toHaveCount(0);
  await page.getByRole("button", { name: "More", exact: true }).click();
  const download = page.waitForEvent("download");
  await page.getByRole("menuitem", { name: "Export as Markdown" }).click();
  expect((await download).suggestedFilename()).toBe("Für alle viele.md");
});

test("G G leads to the first message of a long chat", async ({ page, chat, server }) => {
  const id = await importChat(server, "From its start", longTranscript(420));
  await chat.open(id);
  await expect(chat.log).toContainText("Answer 420.");
  await chat.log.focus();
  await page.keyboard.press("g");
  await page.keyboard.press("g");
  await expect(chat.log.getByText("Question 1:")).toBeInViewport();
});

test("a part of the page that is gone with an old build is got by one reload; one that never comes is said", async ({ page, chat, context, faults }) => {
  faults.expect(/dynamically imported module|preload|Failed to fetch|status of 404/i);
  let missing = 0;
  await page.goto("/");
  await expect(chat.box).toBeVisible();
  await context.route(/\/assets\/.*\.js/, async (route) => {
    if (missing <= 0) return route.continue();
    missing -= 1;
    return route.fulfill({ status: 404, body: "gone" });
  });
  missing = 1;
  await page
    .getByRole("link", { name: /settings/i })
    .first()
    .click();
  await expect(page.getByRole("heading", { level: 1, name: "General" })).toBeVisible();
  missing = 1000;
  await page.getByRole("link", { name: "Skills" }).click();
  await expect(page.getByText("This page of the settings cannot be shown.")).toBeVisible();
  await expect(page.getByRole("button", { name: "Reload the page" })).toBeVisible();
  await expect(page.getByRole("link", { name: "General" })).toBeVisible();
});

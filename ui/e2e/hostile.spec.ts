/** Content that tries to run, to load or to lead elsewhere. The rules of every test say that nothing does. */
import { expect, test } from "./test";
import { importChat, text } from "./transcripts";

const RUN = "window.hostile=1";
const HOSTILE = [
  `<script>${RUN}</script>`,
  `<img src=x onerror="${RUN}">`,
  `<svg onload="${RUN}"><a href="javascript:${RUN}">x</a></svg>`,
  `<iframe srcdoc="<script>parent.${RUN}</script>"></iframe>`,
  `[link](javascript:${RUN})`,
  `[link](data:text/html,<script>${RUN}</script>)`,
  `![image](https://evil.example/pixel.png)`,
  `<style>@import "https://evil.example/x.css"</style>`,
  `[ref]: javascript:${RUN}\n\n[ref]`,
  `<a href="vbscript:x" onclick="${RUN}">click</a>`,
  `\u202Egnp.exe \u0000\u200B`.replaceAll("\u0000", ""),
].join("\n\n");
const NAME = `<img src=x onerror=${RUN}>.png`;

test("nothing that a model, a tool or a file says runs, loads or leads elsewhere", async ({ page, chat, server }) => {
  const id = await importChat(server, `<img src=x onerror=${RUN}>`, [
    { role: "user", content: [text(HOSTILE), { type: "file-reference", file_name: NAME, start_line: 1, end_line: 2, content: HOSTILE }] },
    {
      role: "assistant",
      content: [
        { type: "reasoning", text: HOSTILE },
        text(HOSTILE),
        { type: "source", url: `javascript:${RUN}`, title: HOSTILE },
        { type: "tool-call", tool_call_id: "c1", tool_name: "execute", args: { command: HOSTILE } },
        { type: "tool-call", tool_call_id: "c2", tool_name: NAME, args: { path: NAME, content: HOSTILE } },
      ],
    },
    {
      role: "tool",
      content: [
        { type: "tool-result", tool_call_id: "c1", tool_name: "execute", result: { output: `\u001b]8;;javascript:${RUN}\u0007x ${HOSTILE}`, exit_code: 1 } },
        { type: "tool-result", tool_call_id: "c2", tool_name: NAME, result: { html: HOSTILE }, is_error: true },
      ],
    },
    { role: "assistant", content: [text(`\`\`\`html\n${HOSTILE}\n\`\`\`\n\n| a |\n|---|\n| ${RUN} <script>${RUN}</script> |`)] },
  ]);
  await chat.open(id);
  await expect(chat.log.getByRole("article", { name: "You" })).toContainText("onerror");
  for (const summary of await chat.log.locator("summary").all()) await summary.click();
  await chat.log.evaluate((log) => log.scrollTo(0, 0));
  const links = await page.locator("a[href]").evaluateAll((all) => all.map((one) => new URL((one as HTMLAnchorElement).href).protocol));
  expect(links.filter((protocol) => !["http:", "https:", "mailto:"].includes(protocol))).toEqual([]);
  expect(await chat.log.locator("iframe, object, embed, form[action]").count()).toBe(0);
  await expect(page.getByRole("heading", { level: 1 })).toContainText("<img");
});

test("a prompt that is echoed while it is written does not run", async ({ chat }) => {
  await chat.begin(HOSTILE);
  await expect(chat.answers.first()).toContainText("I have no opinion on that");
});

test("these tests notice a request to another host, which it does not reach, and an error of the console", async ({ context, faults }) => {
  faults.expect(/^request to http:\/\/elsewhere\.example\/$/);
  faults.expect(/^console: a mistake$/);
  const page = await context.newPage();
  await page.goto("/lite");
  await page.evaluate(() => console.error("a mistake"));
  await expect(page.goto("http://elsewhere.example/")).rejects.toThrow("ERR_NAME_NOT_RESOLVED");
  expect(faults.found).toEqual(["console: a mistake", "request to http://elsewhere.example/"]);
  await page.close();
});

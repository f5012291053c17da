/** A public link: made in the share dialog, read in a browser that knows no session, and ended. */
import { expectGoodEverywhere, expectGoodState } from "./everywhere";
import { expect, PageFaults, test } from "./test";
import { importChat, text } from "./transcripts";

const SVG = '<svg xmlns="http://www.w3.org/2000/svg" onload="top.hostile=1"><circle r="9"/></svg>';

test("a chat is read by a public link without a session, until its owner revokes it", async ({ page, server, browser }) => {
  await server.api("PATCH", "/settings", { public_links: true });
  const id = await importChat(server, "Count the rows", [
    { role: "user", content: [text("How many rows has the table? <img src=x onerror=hostile=1>")] },
    {
      role: "assistant",
      content: [{ type: "reasoning", text: "HIDDEN-THOUGHT" }, text("It has **three** rows:\n\n```js\nrows.length\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |")],
    },
    { role: "assistant", content: [{ type: "tool-call", tool_call_id: "c1", tool_name: "execute", args: { command: "wc -l" } }] },
    { role: "tool", content: [{ type: "tool-result", tool_call_id: "c1", tool_name: "execute", result: { output: "3 rows.csv" } }] },
    { role: "assistant", content: [text(`Done. ![remote](https://evil.test/pixel.png) ${SVG}`)] },
  ]);
  await page.goto(`/c/${id}`);
  await page.getByRole("main").getByRole("button", { name: "More" }).click();
  await page.getByRole("menuitem", { name: "Share" }).click();
  const dialog = page.getByRole("dialog", { name: "Share this chat" });
  await dialog.getByRole("button", { name: "Make a public link" }).click();
  await dialog.getByRole("checkbox", { name: /Show tools/ }).check();
  await expectGoodState(page, "the form of a public link");
  await dialog.getByRole("button", { name: "Make the link" }).click();
  const address = await dialog.getByText(/\/p#/).innerText();
  await expect(dialog.getByRole("list", { name: "Public links" })).toContainText("not opened yet");
  await expectGoodState(page, "a new public link");

  const faults = new PageFaults(server.url);
  const stranger = await browser.newContext({ locale: "en-GB", timezoneId: "UTC", reducedMotion: "reduce" });
  await faults.watch(stranger);
  faults.expect(/status of 404/);
  const reader = await stranger.newPage();
  const sent: string[] = [];
  reader.on("request", (request) => sent.push(`${request.url()} ${request.headers().cookie ?? ""}`));
  await reader.goto(address);
  await expect(reader.getByRole("heading", { level: 1, name: "Count the rows" })).toBeVisible();
  await expect(reader.getByRole("article", { name: "Answer" }).first()).toContainText("It has three rows");
  await reader.getByText("Output of execute").click();
  await expect(reader.getByText("3 rows.csv")).toBeVisible();
  await expect(reader.getByText("HIDDEN-THOUGHT")).toHaveCount(0);
  await expectGoodEverywhere(reader, "a public link");
  const secret = address.split("#")[1] ?? "";
  expect(secret).toHaveLength(43);
  expect(
    sent.filter((line) => line.includes(secret)),
    "addresses with the secret",
  ).toEqual([]);
  expect(await reader.evaluate(() => document.referrer)).toBe("");

  await dialog.getByRole("button", { name: /^Revoke/ }).click();
  await expect(dialog.getByRole("list", { name: "Public links" })).toHaveCount(0);
  await reader.reload();
  await expect(reader.getByRole("alert")).toContainText("There is nothing under this link");
  await expectGoodEverywhere(reader, "a link that has ended");
  await faults.check(stranger);
  await stranger.close();
});

test("links are listed for their owner and for administrators, who set how long they may live", async ({ page, server }) => {
  await server.api("PATCH", "/settings", { public_links: false, public_link_days: 30 });
  const id = await importChat(server, "Shared with all", [{ role: "user", content: [text("hello")] }]);
  await page.goto("/admin/behaviour");
  await page.getByRole("switch", { name: "Public links" }).click();
  await page.getByRole("combobox", { name: "Life of a public link" }).selectOption("7");
  await expect.poll(async () => (await server.api<{ public_link_days: number }>("GET", "/settings")).public_link_days).toBe(7);
  await expectGoodState(page, "settings of public links");
  await server.api("POST", `/chats/${id}/public-links`, { days: 7 });
  for (const path of ["/settings/links", "/admin/links"]) {
    await page.goto(path);
    await expect(page.getByRole("row", { name: /Shared with all/ })).toBeVisible();
    await expectGoodState(page, path);
  }
  await page
    .getByRole("row", { name: /Shared with all/ })
    .getByRole("button", { name: "Revoke" })
    .click();
  await page.getByRole("dialog").getByRole("button", { name: "Revoke" }).click();
  await expect(page.getByText("No public links.")).toBeVisible();
});

/** The first minute without a key: a worker is killed in mid-sentence, and another goes on. */
import { expect, expectAccessible, test } from "./test";

test("a worker that is killed by key in mid-sentence is replaced: the page says so, and the story goes on", async ({ page, chat }) => {
  await page.goto("/");
  await page.getByRole("button", { name: /Lose a worker/ }).press("Enter");
  await page.waitForURL(/\/c\//);
  await expect(chat.log.getByRole("listitem").first()).toBeVisible();
  const runs = page.getByRole("region", { name: "Runs" });
  await expect(runs).toBeVisible();
  const kill = page.getByRole("button", { name: "Kill the worker" }).last();
  await expect(kill).toBeVisible();
  await kill.press("Enter");
  await expect(chat.log.getByText(/Recovered on/).first()).toBeVisible();
  await expectAccessible(page);
  const told = async () => ((await chat.answers.last().textContent()) ?? "").length;
  const before = await told();
  await expect.poll(told).toBeGreaterThan(before);
  await chat.interrupt();
  await expect(chat.answers).toHaveCount(1);
  await expect(runs).toContainText(/killed|lost/i);
});

test("a subagent is stopped from its card, and its chat goes on", async ({ page, chat }) => {
  await chat.begin("review this with subagents");
  const stop = chat.log.getByRole("button", { name: "Stop agent" }).first();
  await stop.click();
  await expect(chat.log).toContainText("Both are back");
  await chat.waitUntilIdle();
  const children = chat.sidebar.getByRole("treeitem", { level: 3 });
  await children.first().click();
  await expect(page.locator("header .app-bar-parent")).toBeVisible();
  await chat.waitUntilIdle();
  await expectAccessible(page);
});

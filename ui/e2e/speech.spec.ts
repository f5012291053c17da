/** What a screen reader says, and what can be done without a pointer. */
import type { Page } from "@playwright/test";
import { expect, test } from "./test";

/** Collects each text of each live region of the document, from its first moment. */
async function recordSpeech(page: Page): Promise<() => Promise<string[]>> {
  await page.addInitScript(() => {
    const said: string[] = [];
    const last = new WeakMap<Element, string>();
    Object.assign(window, { said });
    const selector = "[aria-live]:not([aria-live=off]), [role=status], [role=alert], [role=log]:not([aria-live=off])";
    new MutationObserver(() => {
      for (const region of document.querySelectorAll(selector)) {
        const text = region.textContent.trim();
        if (text === (last.get(region) ?? "")) continue;
        last.set(region, text);
        if (text !== "") said.push(text);
      }
    }).observe(document, { subtree: true, childList: true, characterData: true });
  });
  return () => page.evaluate(() => (window as unknown as { said: string[] }).said);
}

test.use({ ownContext: true });

test("an answer is announced when it begins and when it is complete, and not by the token", async ({ page, chat }) => {
  const said = await recordSpeech(page);
  await chat.begin("think about it");
  await expect(chat.log).toContainText("My reasoning is above this answer");
  await chat.waitUntilIdle();
  await expect.poll(said).toContain("Reply complete");
  expect((await said()).filter((text) => text !== "Sent")).toEqual(["Working", "Reply complete"]);
});

test("the first minute goes without a pointer: a task, the queue, a stop, a reload, the panel", async ({ page, chat }) => {
  const said = await recordSpeech(page);
  await page.goto("/");
  await expect(chat.box).toBeFocused();
  const card = page.getByRole("button", { name: /Lose a worker/ });
  while (!(await card.evaluate((one) => one === document.activeElement))) await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  await page.waitForURL(/\/c\//);
  await expect(chat.log.getByRole("listitem").first()).toBeVisible();
  await page.keyboard.press("/");
  await expect(chat.box).toBeFocused();
  for (const text of ["answer fast: one", "answer fast: two"]) {
    await page.keyboard.type(text);
    await page.keyboard.press("Enter");
    await expect(chat.box).toHaveValue("");
  }
  await expect.poll(() => chat.queued()).toEqual(["answer fast: one", "answer fast: two"]);
  // The last queued message is edited from the empty box, and moved.
  await page.keyboard.press("ArrowUp");
  await expect(chat.queue.getByRole("textbox", { name: "Queued message" })).toBeFocused();
  await page.keyboard.press("End");
  await page.keyboard.type(", edited");
  await page.keyboard.press("Enter");
  await expect.poll(() => chat.queued()).toEqual(["answer fast: one", "answer fast: two, edited"]);
  await expect(chat.box).toBeFocused();
  await page.keyboard.press("F5");
  await expect.poll(() => chat.queued()).toEqual(["answer fast: one", "answer fast: two, edited"]);
  await expect(chat.log.getByRole("listitem").first()).toBeVisible();
  await page.keyboard.press("Escape");
  await expect(chat.answers.last()).toContainText("This is a fast answer");
  await expect(chat.log.getByRole("article", { name: "You" })).toHaveCount(3);
  await chat.waitUntilIdle();

  await page.keyboard.press("Shift+Tab");
  await page.keyboard.press("Shift+G");
  await expect(chat.answers.last()).toBeFocused();
  await page.keyboard.press("Shift+K");
  await expect(chat.log.getByRole("article", { name: "You" }).last()).toBeFocused();
  await expect(page.getByRole("region", { name: "Runs" })).toBeVisible();
  await page.keyboard.press("]");
  await expect(page.getByRole("region", { name: "Runs" })).toBeHidden();
  await page.keyboard.press("r");
  await expect(page.getByRole("region", { name: "Runs" })).toBeVisible();
  await page.keyboard.press("?");
  await expect(page.getByRole("dialog")).toBeVisible();
  await page.keyboard.press("Escape");
  await expect(page.getByRole("dialog")).toBeHidden();
  await page.keyboard.press("Control+k");
  await expect(page.getByRole("dialog").getByRole("combobox")).toBeFocused();
  await page.keyboard.type("new chat");
  await expect(page.getByRole("option", { name: /^New chat/ }).first()).toHaveAttribute("data-value", "command New chat");
  await expect(page.getByRole("option", { name: /^New chat/ }).first()).toHaveAttribute("aria-selected", "true");
  await page.keyboard.press("Enter");
  await page.waitForURL((url) => !url.pathname.startsWith("/c/"));
  expect((await said()).some((text) => text.includes("Nothing is lost"))).toBe(false);
});

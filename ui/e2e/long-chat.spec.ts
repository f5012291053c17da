/** A chat of ten thousand messages opens as fast as a short one, and stays where its reader is. */
import type { Page } from "@playwright/test";
import type { ChatScreen } from "./chat-screen";
import { expectGoodState } from "./everywhere";
import { DESKTOP, expect, expectAccessible, test } from "./test";
import { importChat, longTranscript } from "./transcripts";

const frames = (page: Page): Promise<void> => page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done()))));

const pixelsToEnd = (chat: ChatScreen): Promise<number> => chat.log.evaluate((log) => log.scrollHeight - log.clientHeight - log.scrollTop);

test("a chat of 10,000 messages shows its end, with few elements, and scrolls back", async ({ page, chat, server }) => {
  test.setTimeout(120_000);
  const id = await importChat(server, "A long chat", longTranscript(10_000));
  await chat.open(id);
  await expect(chat.log).toContainText("Answer 10000.");
  const count = () => page.evaluate(() => document.querySelectorAll("*").length);
  expect(await count(), "elements").toBeLessThanOrEqual(1500);
  await chat.log.hover();
  for (let step = 0; step < 20; step += 1) await page.mouse.wheel(0, -2000);
  await expect(chat.log).not.toContainText("Answer 10000.");
  expect(await count(), "elements after scrolling").toBeLessThanOrEqual(1500);
});

test("words are found in a chat of 2,400 messages, counted, and shown one after the other", async ({ page, chat, server }) => {
  const id = await importChat(server, "A long chat", longTranscript(2400));
  await chat.open(id);
  await expect(chat.log).toContainText("Answer 2400.");
  await chat.box.press("ControlOrMeta+Shift+f");
  const box = page.getByRole("textbox", { name: "Find in this chat" });
  await expect(box).toBeFocused();
  await box.fill("question 23");
  const bar = page.getByRole("search");
  await expect(bar).toContainText("56 of 56");
  await expect(chat.log).toContainText("Question 2399:");
  await expectGoodState(page, "words found in a chat");
  await box.press("Enter");
  await expect(bar).toContainText("55 of 56");
  await expect(chat.log.locator(".is-marked")).toContainText("Question 2397:");
  await bar.getByRole("button", { name: "Later message" }).click();
  await expect(bar).toContainText("56 of 56");
  await box.press("Shift+Enter");
  await expect(bar).toContainText("1 of 56");
  await expect(chat.log.locator(".is-marked")).toContainText("Question 23:");
  await box.fill("no such words");
  await expect(bar).toContainText("Not found");
  await box.press("Escape");
  await expect(box).toBeHidden();
});

test("the rail of a long chat names its prompts and leads to each", async ({ page, chat, server }) => {
  const id = await importChat(server, "A long chat", longTranscript(60));
  await chat.open(id);
  await expect(chat.log).toContainText("Answer 60.");
  const rail = page.getByRole("button", { name: "Prompts of this chat" });
  await expectGoodState(page, "the rail of a long chat");
  await page.setViewportSize(DESKTOP);
  await rail.click();
  const list = page.getByRole("dialog", { name: "Prompts of this chat" });
  await expect(list.locator("[aria-current]")).toBeInViewport();
  await expect(list.getByRole("button", { name: /^Question 59/ })).toBeAttached();
  await expectAccessible(page, "the prompts of a long chat");
  await list.getByRole("button", { name: /^Question 21/ }).press("Enter");
  await expect(list).toBeHidden();
  await expect(rail).toBeFocused();
  await expect(chat.log.getByText("Question 21:", { exact: false })).toBeInViewport();
  await rail.press("Enter");
  await expect(list.locator("[aria-current]")).toContainText("Question 21");
  await page.keyboard.press("Escape");
});

test("a move upwards counts before the browser has told of it", async ({ page, chat, server }) => {
  const id = await importChat(server, "A chat of some pages", longTranscript(60));
  await chat.open(id);
  await expect(chat.log).toContainText("Answer 60.");
  await frames(page);
  expect(await pixelsToEnd(chat)).toBeLessThan(2);
  // The focus renders the list at once: the event of the scroll comes only with the next frame.
  await chat.log.evaluate((log) => {
    log.scrollTop -= 400;
    log.querySelector<HTMLElement>("article")?.focus({ preventScroll: true });
  });
  await frames(page);
  expect(await pixelsToEnd(chat)).toBeGreaterThan(200);
});

/** The first row that is wholly in the window, and where it stands. */
const readRow = (chat: ChatScreen): Promise<{ text: string; top: number }> =>
  chat.log.evaluate((log) => {
    const top = log.getBoundingClientRect().top;
    const rows = [...log.querySelectorAll("article")].map((row) => ({ text: row.textContent, top: row.getBoundingClientRect().top - top }));
    return rows.sort((a, b) => a.top - b.top).find((row) => row.top >= 0) ?? { text: "", top: 0 };
  });

const placeOf = (chat: ChatScreen, text: string): Promise<number | null> =>
  chat.log.evaluate((log, words) => {
    const row = [...log.querySelectorAll("article")].find((one) => one.textContent === words);
    return row === undefined ? null : row.getBoundingClientRect().top - log.getBoundingClientRect().top;
  }, text);

test("an older page that fails says so and is tried again; one that comes leaves the row that is read where it is", async ({
  page,
  chat,
  server,
  context,
  faults,
}) => {
  faults.expect(/ERR_CONNECTION_RESET/);
  const id = await importChat(server, "A chat of some pages", longTranscript(3000));
  let isDown = true;
  let release = (): void => undefined;
  const held = new Promise<void>((resolve) => (release = resolve));
  await context.route(/before_id=/, async (route) => {
    if (isDown) return route.abort("connectionreset");
    await held;
    return route.continue();
  });
  await chat.open(id);
  await expect(chat.log).toContainText("Answer 3000.");
  const retry = chat.log.getByRole("button", { name: "Earlier messages could not be loaded. Retry" });
  await chat.log.hover();
  await expect(async () => {
    await page.mouse.wheel(0, -100_000);
    await expect(retry).toBeVisible({ timeout: 500 });
  }).toPass();
  await expectGoodState(page, "an older page that could not be loaded");
  isDown = false;
  await chat.log.evaluate((log) => log.scrollTo(0, 0));
  await retry.click();
  await expect(chat.log).toContainText("Loading earlier messages");
  await frames(page);
  const before = await readRow(chat);
  release();
  await expect(chat.log).not.toContainText("Loading earlier messages");
  await frames(page);
  await frames(page);
  expect(await placeOf(chat, before.text)).toBeCloseTo(before.top, -1);
});

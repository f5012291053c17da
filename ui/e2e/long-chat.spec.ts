/** A chat of ten thousand messages opens as fast as a short one, and stays where its reader is. */
import type { Page } from "@playwright/test";
import type { ChatScreen } from "./chat-screen";
import { expect, test } from "./test";
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

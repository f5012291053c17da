/** A chat of ten thousand messages opens as fast as a short one. */
import { expect, test } from "./test";
import { importChat, longTranscript } from "./transcripts";

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

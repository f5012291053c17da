/** The queue of a working chat: what a person does with it, and what the end of a turn does. */
import { expect, expectAccessible, test } from "./test";

test("messages wait in order, and can be edited, moved, removed and sent now", async ({ chat, page }) => {
  await chat.beginStory();
  for (const text of ["first", "second", "third"]) await chat.send(text);
  await expect.poll(() => chat.queued()).toEqual(["first", "second", "third"]);
  await expectAccessible(page);

  const row = (text: string) => chat.queue.getByRole("listitem").filter({ hasText: text });
  await row("second").hover();
  await row("second").getByRole("button", { name: "Edit" }).click();
  await chat.queue.getByRole("textbox", { name: "Queued message" }).fill("second, edited");
  await chat.queue.getByRole("textbox", { name: "Queued message" }).press("Enter");
  await expect.poll(() => chat.queued()).toEqual(["first", "second, edited", "third"]);

  await row("third").hover();
  await row("third").getByRole("button", { name: "Move up" }).click();
  await expect.poll(() => chat.queued()).toEqual(["first", "third", "second, edited"]);

  await row("first").hover();
  await row("first").getByRole("button", { name: "Remove" }).click();
  await expect.poll(() => chat.queued()).toEqual(["third", "second, edited"]);
  await page.reload();
  await expect.poll(() => chat.queued()).toEqual(["third", "second, edited"]);

  await row("second, edited").hover();
  await row("second, edited").getByRole("button", { name: "Send now" }).click();
  await expect(chat.log.getByRole("article", { name: "You" }).filter({ hasText: "second, edited" })).toBeVisible();
  await expect(chat.log).toContainText("Interrupt me at any time");
  await expect(chat.log.getByRole("article", { name: "You" }).filter({ hasText: "third" })).toBeVisible({ timeout: 30_000 });
  await expect(chat.queue).toBeHidden();
});

test("a queued message is sent when the turn ends, in its order", async ({ chat }) => {
  await chat.begin("think about it");
  await chat.send("answer fast: one");
  await chat.send("answer fast: two");
  const prompts = chat.log.getByRole("article", { name: "You" });
  await expect(prompts).toHaveCount(3, { timeout: 40_000 });
  await expect(prompts.nth(1)).toContainText("one");
  await expect(prompts.nth(2)).toContainText("two");
  await chat.waitUntilIdle();
});

test("an edit that is too late is kept in the box and never lost", async ({ chat, server }) => {
  await chat.beginStory();
  await chat.send("to be edited");
  const row = chat.queue.getByRole("listitem").filter({ hasText: "to be edited" });
  await row.hover();
  await row.getByRole("button", { name: "Edit" }).click();
  await chat.queue.getByRole("textbox", { name: "Queued message" }).fill("edited too late");
  const { queued_messages } = await server.api<{ queued_messages: { id: number }[] }>("GET", `/chats/${chat.id}/queue`);
  await server.api("POST", `/chats/${chat.id}/queue/${queued_messages[0]?.id ?? 0}/promote`);
  await expect(chat.log.getByRole("article", { name: "You" }).filter({ hasText: "to be edited" })).toBeVisible();
  await expect(chat.box).toHaveValue("edited too late");
});

test("a held queue waits until it is resumed", async ({ chat, page }) => {
  await chat.beginStory();
  await chat.send("answer fast: after the hold");
  await chat.queue.getByRole("button", { name: "Hold" }).click();
  await expect(chat.log).toContainText("The queue is held");
  await expectAccessible(page);
  await chat.queue.getByRole("button", { name: "Resume" }).click();
  await expect(chat.answers.last()).toContainText("This is a fast answer");
});

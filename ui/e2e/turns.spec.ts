/** A turn of a chat: sent, answered as it is written, kept; interrupted, edited, forked, archived. */
import { STORY } from "./chat-screen";
import { expect, expectAccessible, test } from "./test";

test("a message is answered as the model writes, and both are there after a reload", async ({ chat, page }) => {
  await chat.begin("answer fast");
  await expect(chat.answers).toContainText("This is a fast answer");
  await chat.waitUntilIdle();
  await expectAccessible(page);
  await page.reload();
  await expect(chat.log.getByRole("article", { name: "You" })).toContainText("answer fast");
  await expect(chat.answers).toContainText("chatd needed to store your message");
  await expect(chat.sidebar.getByRole("treeitem", { selected: true })).toContainText(/answer fast/i);
});

test("a reload in the middle of an answer goes on with the same answer", async ({ chat, page }) => {
  await chat.beginStory();
  const before = await chat.log.getByRole("listitem").count();
  await page.reload();
  await expect.poll(() => chat.log.getByRole("listitem").count()).toBeGreaterThan(before);
  await expect(chat.answers).toHaveCount(1);
  await expect(chat.stopButton).toBeVisible();
  await expectAccessible(page);
  await chat.interrupt();
});

test("the agent's work is shown with its tools, and the answer after them", async ({ chat, page }) => {
  await chat.begin("fix the failing test");
  await expect(chat.log).toContainText("All three tests pass now", { timeout: 45_000 });
  await chat.waitUntilIdle();
  await chat.log.evaluate((log) => log.scrollTo(0, 0)); // rows far outside of the view are not in the document
  await expect(chat.log).toContainText("exit 1");
  await expect(chat.log.getByText("basket.py").first()).toBeVisible();
  await expectAccessible(page);
});

test("an interrupt keeps what was written, and the chat goes on", async ({ chat, page }) => {
  await chat.beginStory();
  await chat.box.press("Escape");
  await chat.waitUntilIdle();
  await expect(chat.answers.first()).toContainText("Interrupt me at any time");
  await expectAccessible(page);
  await chat.send("answer fast");
  await expect(chat.answers.last()).toContainText("This is a fast answer");
});

test("an edited message is answered again, and what followed is gone", async ({ chat, page }) => {
  await chat.begin("answer fast");
  await expect(chat.answers).toContainText("This is a fast answer");
  await chat.waitUntilIdle();
  await chat.send("think about it");
  await expect(chat.log).toContainText("Open the box labelled");
  await chat.waitUntilIdle();
  const first = chat.log.getByRole("article", { name: "You" }).first();
  await first.hover();
  await first.getByRole("button", { name: "Edit" }).click();
  await expect(page.getByText("Editing a sent message")).toBeVisible();
  await expect(chat.box).toHaveValue("answer fast");
  await expectAccessible(page);
  await chat.send("cite your sources");
  await expect(chat.log).toContainText("An answer can cite sources");
  await expect(chat.log).not.toContainText("This is a fast answer");
  await expect(chat.log).not.toContainText("Open the box labelled");
});

test("a turn is answered again, and the arrows lead from version to version with the keyboard", async ({ chat, page }) => {
  await chat.begin("answer fast");
  await chat.waitUntilIdle();
  await chat.log.getByRole("button", { name: "Answer again", exact: true }).click();
  const versions = chat.log.getByRole("group", { name: "Version 2 of 2" });
  await expect(versions).toBeVisible();
  await chat.waitUntilIdle();
  const mine = chat.log.getByRole("article", { name: "You" });
  await mine.hover();
  await mine.getByRole("button", { name: "Edit" }).click();
  await chat.send("think about it");
  await expect(chat.log).toContainText("Open the box labelled");
  await chat.waitUntilIdle();
  await expectAccessible(page);
  await chat.log.getByRole("button", { name: "Earlier version" }).focus();
  await page.keyboard.press("Enter");
  await expect(chat.log.getByRole("group", { name: "Version 2 of 3" })).toBeVisible();
  await expect(chat.log).toContainText("This is a fast answer");
  await expect(chat.log).not.toContainText("Open the box labelled");
  await expect(chat.log.getByRole("button", { name: "Earlier version" })).toBeFocused();
  await page.keyboard.press("Enter");
  await expect(chat.log.getByRole("group", { name: "Version 1 of 3" })).toBeVisible();
  await expect(chat.log.getByRole("button", { name: "Later version" })).toBeFocused();
  await page.reload();
  await expect(chat.log.getByRole("group", { name: "Version 1 of 3" })).toBeVisible();
  await expect(chat.answers).toHaveCount(1);
});

test("a fork has the messages up to its place and leaves the first chat as it is", async ({ chat, page }) => {
  await chat.begin("answer fast");
  await expect(chat.answers).toContainText("This is a fast answer");
  await chat.waitUntilIdle();
  const first = chat.id;
  await chat.answers.first().hover();
  await chat.log.getByRole("button", { name: "Fork from here" }).click();
  await page.waitForURL((url) => url.pathname.startsWith("/c/") && !url.pathname.includes(first));
  await expect(chat.answers).toContainText("This is a fast answer");
  await chat.send("think about it");
  await expect(chat.log).toContainText("Open the box labelled");
  await chat.open(first);
  await expect(chat.answers).toContainText("This is a fast answer");
  await expect(chat.log).not.toContainText("Open the box labelled");
});

test("an archived chat leaves the list, and comes back", async ({ chat, page }) => {
  await chat.begin("answer fast: about to be archived");
  await expect(chat.answers).toContainText("This is a fast answer");
  await chat.waitUntilIdle();
  const row = chat.sidebar.getByRole("treeitem", { name: /about to be archived/i });
  await expect(row).toBeVisible();
  await page.getByRole("main").getByRole("button", { name: "More" }).click();
  await page.getByRole("menuitem", { name: "Archive" }).click();
  await expect(row).toBeHidden();
  await page.getByRole("button", { name: "Undo" }).click();
  await expect(row).toBeVisible();
});

test("an error says what happened and what to do, and the chat goes on", async ({ chat, page }) => {
  await chat.begin("show me a permanent error");
  await expect(chat.log).toContainText("The key was refused");
  await expect(chat.log.getByRole("button", { name: "Switch model" })).toBeVisible();
  await expectAccessible(page);
  await chat.send("answer fast");
  await expect(chat.answers.last()).toContainText("This is a fast answer");
});

test("a retry is shown while it waits, and the answer replaces it", async ({ chat, page }) => {
  await chat.begin("show me an error");
  await expect(chat.log).toContainText("starts by itself");
  await expect(chat.log).toContainText("This answer begins");
  await expectAccessible(page);
  await expect(chat.log).toContainText("There it is: an answer", { timeout: 40_000 });
});

test("the story is one article, whoever looks at it", async ({ chat }) => {
  await chat.begin(STORY);
  await expect(chat.answers).toHaveCount(1);
  await chat.interrupt();
});

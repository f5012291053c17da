/** The list of chats: pinned ones in the order that their owner gives them, and shared ones as a reader sees them. */
import { ChatScreen } from "./chat-screen";
import { expectGoodState } from "./everywhere";
import { expect, expectAccessible, test } from "./test";
import { importChat, text } from "./transcripts";
import { createUser, openAs, signOut } from "./users";

test("chats are pinned, and moved by dragging, by the menu and by keys; the order stays", async ({ page, chat, server }) => {
  const names = ["Pin one", "Pin two", "Pin three"];
  for (const name of names) await importChat(server, name, [{ role: "user", content: [text("hello")] }]);
  await page.goto("/");
  const row = (name: string) => chat.sidebar.getByRole("treeitem", { name: new RegExp(name) });
  const order = () =>
    chat.sidebar
      .locator("[role=treeitem][aria-level='2']")
      .filter({ hasText: /^\s*Pin / })
      .locator(".sidebar-row-title")
      .allTextContents();
  for (const name of names) {
    await row(name).click({ button: "right" });
    await page.getByRole("menuitem", { name: "Pin", exact: true }).click();
    await expect(page.getByRole("menu")).toBeHidden();
  }
  await expect.poll(order).toEqual(["Pin one", "Pin two", "Pin three"]);
  await row("Pin three").dragTo(row("Pin one"));
  await expect.poll(order).toEqual(["Pin three", "Pin one", "Pin two"]);
  await row("Pin two").click({ button: "right" });
  await expectAccessible(page, "the menu of a pinned chat");
  await page.getByRole("menuitem", { name: "Move up" }).click();
  await expect.poll(order).toEqual(["Pin three", "Pin two", "Pin one"]);
  await row("Pin three").focus();
  await page.keyboard.press("Alt+ArrowDown");
  await expect.poll(order).toEqual(["Pin two", "Pin three", "Pin one"]);
  await page.reload();
  await expect.poll(order).toEqual(["Pin two", "Pin three", "Pin one"]);
});

test("a shared chat is read by whom its owner names, as it is written, and by nobody after that", async ({ page, chat, server, browser }) => {
  const reader = await createUser(server, "reader");
  await chat.beginStory();
  await page.getByRole("main").getByRole("button", { name: "More" }).click();
  await page.getByRole("menuitem", { name: "Share" }).click();
  const dialog = page.getByRole("dialog", { name: "Share this chat" });
  await dialog.getByRole("textbox", { name: "Add people or groups" }).fill("read");
  await dialog.getByRole("button", { name: "Add reader" }).click();
  await expect(dialog.getByRole("list", { name: "Readers" })).toContainText("reader");
  await expectGoodState(page, "sharing");

  const other = await openAs(browser, server, reader, /status of 404/);
  const theirs = new ChatScreen(other);
  await theirs.open(chat.id);
  const before = await theirs.log.getByRole("listitem").count();
  await expect.poll(() => theirs.log.getByRole("listitem").count()).toBeGreaterThan(before);
  await expect(other.getByText("You can read this chat. Only admin can write in it.")).toBeVisible();
  await expect(theirs.box).toHaveCount(0);
  await expect(theirs.stopButton).toHaveCount(0);
  await expectGoodState(other, "a chat for a reader");

  await dialog.getByRole("button", { name: "Remove reader" }).click();
  await expect(other.getByText("This chat does not exist, or is not shared with you.").first()).toBeVisible();
  await signOut(other);
  await dialog.getByRole("button", { name: "Done" }).click();
  await chat.interrupt();
});

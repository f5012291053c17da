/** Many tabs, and a network that goes away: each tab ends with the same chat. */
import { ChatScreen, STORY } from "./chat-screen";
import { expect, expectAccessible, test } from "./test";

test("two tabs show the same chat in step: messages, queue and interrupt", async ({ chat, context }) => {
  await chat.beginStory();
  const other = new ChatScreen(await context.newPage());
  await other.open(chat.id);
  await expect(other.answers.first()).toContainText("Interrupt me at any time");
  await other.send("from the other tab");
  await expect.poll(() => chat.queued()).toEqual(["from the other tab"]);
  await expect.poll(() => other.queued()).toEqual(["from the other tab"]);
  const row = chat.queue.getByRole("listitem").first();
  await row.hover();
  await row.getByRole("button", { name: "Remove" }).click();
  await expect(other.queue).toBeHidden();
  await chat.interrupt();
  await other.waitUntilIdle();
  await expect.poll(async () => (await other.log.innerText()) === (await chat.log.innerText())).toBe(true);
});

test("eight tabs are open, and each of them sends and follows", async ({ chat, context }) => {
  await chat.begin(STORY);
  const tabs = [chat];
  while (tabs.length < 8) {
    const tab = new ChatScreen(await context.newPage());
    await tab.open(chat.id);
    tabs.push(tab);
  }
  for (const tab of tabs) await expect(tab.answers.first()).toContainText("Interrupt me at any time");
  const last = tabs.at(-1) ?? chat;
  // Quick, since it is answered after the interrupt, before the chat is idle.
  await last.send("answer fast: from the eighth tab");
  for (const tab of tabs) await expect.poll(() => tab.queued()).toEqual(["answer fast: from the eighth tab"]);
  await last.interrupt();
});

test("a while offline loses nothing: what is sent is kept, and the answer goes on", async ({ chat, page, context, browser, server, signedIn, faults }) => {
  faults.expect(/ERR_INTERNET_DISCONNECTED/);
  await chat.beginStory();
  const online = await browser.newContext({ baseURL: server.url, storageState: signedIn });
  const other = new ChatScreen(await online.newPage());
  await other.open(chat.id);
  const before = await chat.log.getByRole("listitem").count();
  await context.setOffline(true);
  await expect(page.getByText("What you send is kept.")).toBeVisible();
  await expectAccessible(page);
  await chat.send("sent while offline");
  await expect.poll(() => other.log.getByRole("listitem").count()).toBeGreaterThan(before + 5);
  await online.close();
  await context.setOffline(false);
  await expect(page.getByText("What you send is kept.")).toBeHidden();
  await expect.poll(() => chat.queued()).toEqual(["sent while offline"]);
  await expect.poll(() => chat.log.getByRole("listitem").count()).toBeGreaterThan(before + 5);
  await expect(chat.answers).toHaveCount(1);
  await chat.interrupt();
});

/** The server ends, by a signal or a crash, and starts again: the page goes on by itself. */
import { ChatScreen } from "./chat-screen";
import { ChatdServer } from "./chatd-server";
import { expect, PageFaults, signIn, test } from "./test";

test("a page that is open goes on after the server was killed, and after it was stopped", async ({ browser }) => {
  test.setTimeout(180_000);
  const server = new ChatdServer();
  const context = await browser.newContext();
  try {
    await server.start();
    const faults = new PageFaults(server.url);
    await faults.watch(context);
    const page = await context.newPage();
    await signIn(page, server);
    const chat = new ChatScreen(page);
    await page.goto(server.url);
    await chat.send("tell me a long story");
    await page.waitForURL(/\/c\//);
    await expect(chat.answers.first()).toContainText("Interrupt me at any time");

    await server.stop("SIGKILL");
    await expect(page.getByText("What you send is kept.")).toBeVisible();
    await chat.send("sent while the server was down");
    await server.start();
    await expect(page.getByText("What you send is kept.")).toBeHidden({ timeout: 60_000 });
    await expect.poll(() => chat.queued(), { timeout: 60_000 }).toEqual(["sent while the server was down"]);
    await expect(chat.answers.first()).toContainText("Interrupt me at any time", { timeout: 60_000 });

    await server.stop("SIGTERM");
    await expect(page.getByText("What you send is kept.")).toBeVisible();
    await server.start();
    await expect.poll(() => chat.queued(), { timeout: 60_000 }).toEqual(["sent while the server was down"]);
    await expect(chat.answers.first()).toContainText("Interrupt me at any time", { timeout: 60_000 });
    await chat.interrupt();
    await faults.check(context);
  } finally {
    await context.close();
    await server.dispose();
  }
});

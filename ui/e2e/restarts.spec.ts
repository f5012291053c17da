/** The server ends, by a signal or a crash, and starts again: the page goes on by itself. */
import type { Page } from "@playwright/test";
import { ChatScreen, STORY } from "./chat-screen";
import { openTerminal, runInTerminal } from "./terminal";
import { expect, test } from "./test";

/** A shell that remembers a number. */
async function startShell(page: Page): Promise<void> {
  const chat = new ChatScreen(page);
  await page.goto("/");
  await chat.send("run a command");
  await page.waitForURL(/\/c\//);
  await expect(chat.log).toContainText("README.md", { timeout: 60_000 });
  await chat.waitUntilIdle();
  await page.goto(`${page.url()}?panel=runs`);
  await openTerminal(page);
  await runInTerminal(page, "kept=40; expr 700 + 77", "777");
}

test("a page that is open goes on after the server was killed, and after it was stopped", async ({ page, chat, context, server, faults }) => {
  test.setTimeout(180_000);
  faults.expect(/Failed to load resource|WebSocket connection/);
  await chat.begin(STORY);
  await expect(chat.answers.first()).toContainText("Interrupt me at any time");

  const shell = await context.newPage();
  await startShell(shell);

  await server.stop("SIGKILL");
  await expect(shell.getByText("the shell goes on")).toBeVisible();
  await shell.keyboard.type("expr $kept ");
  await expect(page.getByText("What you send is kept.")).toBeVisible();
  await chat.send("sent while the server was down");
  await server.start();
  await expect(page.getByText("What you send is kept.")).toBeHidden({ timeout: 60_000 });
  await expect.poll(() => chat.queued(), { timeout: 60_000 }).toEqual(["sent while the server was down"]);
  await expect(chat.answers.first()).toContainText("Interrupt me at any time", { timeout: 60_000 });

  await expect(shell.getByText("the shell goes on")).toBeHidden({ timeout: 60_000 });
  await runInTerminal(shell, "+ 2", "42");
  await shell.close();

  await server.stop("SIGTERM");
  await expect(page.getByText("What you send is kept.")).toBeVisible();
  await server.start();
  await expect.poll(() => chat.queued(), { timeout: 60_000 }).toEqual(["sent while the server was down"]);
  await expect(chat.answers.first()).toContainText("Interrupt me at any time", { timeout: 60_000 });
  await chat.interrupt();
});

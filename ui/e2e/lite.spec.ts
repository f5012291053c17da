/** The page without a build, over the public API alone. */
import { rmSync } from "node:fs";
import { ChatdServer, copyWithoutPage } from "./chatd-server";
import { expect, expectAccessible, test } from "./test";

test("the lite page sends a message, shows the answer as it is written, and lists the chat", async ({ page }) => {
  await page.goto("/lite");
  await expect(page.getByText("Signed in as admin")).toBeVisible();
  await expectAccessible(page);
  await page.getByRole("textbox", { name: "Message" }).fill("tell me a long story");
  await page.getByRole("button", { name: "Send" }).click();
  await expect(page.getByRole("status")).toHaveText("running");
  await expect(page.getByRole("log")).toContainText("Nothing is lost");
  await expect(page.getByRole("navigation", { name: "Chats" }).getByRole("link").first()).toHaveAttribute("aria-current", "page");
  await page.getByRole("textbox", { name: "Message" }).fill("And then?");
  await page.getByRole("textbox", { name: "Message" }).press("Enter");
  await expect(page.getByRole("list", { name: "Queue" })).toContainText("And then?");
  await expectAccessible(page);
  await page.getByRole("button", { name: "Remove from the queue: And then?" }).click();
  await expect(page.getByRole("list", { name: "Queue" })).toBeEmpty();
  await page.getByRole("button", { name: "Interrupt" }).click();
  await expect(page.getByRole("status")).toHaveText("waiting");
  await page.reload();
  await expect(page.getByRole("log")).toContainText("Nothing is lost");
});

test.describe("without cookies in the end", () => {
  test.use({ ownContext: true });

  test("the lite page shows an error of a chat, and says how to sign in again", async ({ page, context, faults }) => {
    faults.expect(/status of 401/);
    await page.goto("/lite");
    await page.getByRole("textbox", { name: "Message" }).fill("show me a permanent error");
    await page.getByRole("button", { name: "Send" }).click();
    await expect(page.getByRole("status")).toHaveText("error");
    await expect(page.getByRole("alert")).not.toBeEmpty();
    await context.clearCookies();
    await page.reload();
    await expect(page.getByRole("link", { name: "Sign in" })).toBeVisible();
    await expectAccessible(page);
  });
});

test("a server without the built page serves the lite page in its place, and says how to get the page", async ({ browser }) => {
  const copy = copyWithoutPage();
  const server = new ChatdServer({ package: copy });
  const context = await browser.newContext();
  try {
    await server.start();
    const page = await context.newPage();
    for (const path of ["/", "/c/00000000-0000-0000-0000-000000000000", "/settings/general"]) {
      await page.goto(server.url + path);
      await expect(page.getByText("The full page is not built here")).toBeVisible();
    }
    await expect(page.getByRole("link", { name: "Sign in" })).toBeVisible();
    await expectAccessible(page);
  } finally {
    await context.close();
    await server.dispose();
    rmSync(copy, { recursive: true });
  }
});

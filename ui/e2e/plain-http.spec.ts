/** The page at an address without https that is not this machine's, as in a home or an office network. */
import { expect, test } from "./test";

test("the page works without https: a message is answered, and a token is copied", async ({ browser, server, signedIn }) => {
  const url = new URL(server.url);
  url.hostname = "192.0.2.7";
  const context = await browser.newContext({ baseURL: url.origin });
  const errors: string[] = [];
  context.on("weberror", (error) => errors.push(error.error().message));
  const page = await context.newPage();
  // The server lets browsers sign in there only if it is its `server.url`.
  await page.goto(`/sign-in#${"x".repeat(43)}`);
  await page.getByRole("button", { name: "Sign in", exact: true }).click();
  await expect(page.getByRole("alert").first()).toContainText("Browsers sign in over https, or from this machine.");
  await context.addCookies(signedIn.cookies.map((one) => ({ ...one, domain: url.hostname })));
  await page.goto("/");
  expect(await page.evaluate(() => [isSecureContext, "randomUUID" in crypto])).toEqual([false, false]);

  const box = page.getByRole("textbox", { name: "Message", exact: true });
  await box.fill("hello there");
  await box.press("Enter");
  await page.waitForURL(/\/c\//);
  await expect(page.getByRole("log")).toContainText("hello there");
  await expect(page.getByRole("log").getByRole("listitem").nth(1)).toBeVisible();

  await page.goto("/settings/tokens");
  await page.getByRole("button", { name: "Create a token" }).first().click();
  const dialog = page.getByRole("dialog");
  await dialog.getByRole("textbox", { name: "Name" }).fill("laptop");
  await dialog.getByRole("button", { name: "Create" }).click();
  const shown = page.getByRole("dialog", { name: "Copy the token now" });
  const secret = (await shown.locator("code").textContent()) ?? "";
  expect(secret).toMatch(/^chatd_/);
  await shown.getByRole("button", { name: "Copy" }).click();
  await expect(page.getByText("Copied.")).toBeVisible();
  // Without https a page cannot read the clipboard: it is pasted.
  await page.goto("/");
  await box.press("ControlOrMeta+v");
  await expect(box).toHaveValue(secret);
  expect(errors).toEqual([]);
  await context.close();
});

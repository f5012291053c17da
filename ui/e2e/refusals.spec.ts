/** What the server refuses, and what the page says then: sign-in, sessions, limits, keys. */
import { ChatScreen } from "./chat-screen";
import { expect, expectAccessible, test } from "./test";
import { createUser, openAs, signOut } from "./users";

test.describe("without cookies", () => {
  test.use({ ownContext: true });

  test("without a session the page asks to sign in, and then opens what was asked for", async ({ page, context, server, faults }) => {
    faults.expect(/status of 401/);
    await createUser(server, "hopper");
    await context.clearCookies();
    await page.goto("/settings/general");
    await page.waitForURL(/\/sign-in/);
    await expect(page.getByRole("heading", { name: "Sign in to chatd" })).toBeVisible();
    await expectAccessible(page);
    await page.getByRole("textbox", { name: "User name or email" }).fill("hopper");
    await page.getByRole("textbox", { name: "Password" }).fill("wrong horse battery");
    await page.getByRole("button", { name: "Sign in", exact: true }).click();
    await expect(page.getByRole("alert").filter({ hasText: /\S/ }).first()).toBeVisible();
    await page.getByRole("textbox", { name: "Password" }).fill("correct horse battery");
    await page.getByRole("button", { name: "Sign in", exact: true }).click();
    await page.waitForURL(/\/settings\/general/);
    await expect(page.getByRole("heading", { name: "General" })).toBeVisible();
  });
});

test("a session that ends while the page is open asks to sign in again, and keeps what was written", async ({ server, browser }) => {
  const user = await createUser(server, "ada");
  const page = await openAs(browser, server, user, /status of 401|WebSocket connection/);
  const chat = new ChatScreen(page);
  await chat.begin("answer fast");
  await expect(chat.answers).toContainText("This is a fast answer");
  await chat.box.fill("half a thought");
  await server.api("POST", `/users/${user.id}/password`, { password: "another horse battery" });
  const dialog = page.getByRole("dialog", { name: "Your session has ended" });
  await expect(dialog).toBeVisible();
  await expectAccessible(page);
  await dialog.getByRole("textbox", { name: "Password" }).fill("another horse battery");
  await dialog.getByRole("button", { name: "Sign in", exact: true }).click();
  await expect(dialog).toBeHidden();
  await expect(chat.box).toHaveValue("half a thought");
  await chat.box.press("Enter");
  await expect(chat.log.getByRole("article", { name: "You" }).last()).toContainText("half a thought");
  await signOut(page);
});

test("a suspended user is signed out at once, and cannot come back", async ({ server, browser }) => {
  const user = await createUser(server, "mallory");
  const page = await openAs(browser, server, user, /status of 40[13]|WebSocket connection/);
  await server.api("PATCH", `/users/${user.id}`, { status: "suspended" });
  const dialog = page.getByRole("dialog", { name: "Your session has ended" });
  await expect(dialog).toBeVisible();
  await dialog.getByRole("textbox", { name: "Password" }).fill("correct horse battery");
  await dialog.getByRole("button", { name: "Sign in", exact: true }).click();
  await expect(dialog.getByRole("alert")).toBeVisible();
  await expect(dialog).toBeVisible();
  await signOut(page);
});

test("a user cannot open another user's chat", async ({ server, browser }) => {
  const secret = await server.api<{ id: string }>("POST", "/chats", { content: [{ type: "text", text: "answer fast: a secret" }] });
  const page = await openAs(browser, server, await createUser(server, "nosy"), /status of 404/);
  await page.goto(`/c/${secret.id}`);
  await expect(page.getByText("This chat does not exist, or is not shared with you.")).toBeVisible();
  await expect(page.getByText("a secret")).toHaveCount(0);
  await signOut(page);
});

/** A provider on the wire: a key that it refuses, a limit that is reached, and names that try to run. */
import type { Page } from "@playwright/test";
import { ChatScreen } from "./chat-screen";
import { expectGoodState } from "./everywhere";
import { addModel } from "./model-server";
import { createUser, openAs, signOut } from "./users";
import { expect, MODEL, test } from "./wired";

const RUN = "window.hostile=1";

async function chooseModel(page: Page, name: string): Promise<void> {
  await page.getByRole("button", { name: /^Model:/ }).click();
  await page
    .locator(".composer-model-list")
    .getByRole("button", { name: new RegExp(name) })
    .click();
}

const failed = (chat: ChatScreen) => chat.log.locator(".timeline-callout.is-bad");

test("a key that the provider refuses: an administrator is led to the providers, another user to the keys", async ({ page, chat, server, model, browser }) => {
  await addModel(server, model, "badkey", "sk-refused");
  await page.goto("/");
  await chooseModel(page, "badkey");
  await chat.send("hello");
  await expect(failed(chat)).toContainText("The key was refused");
  await expect(failed(chat)).toContainText("Set a new key, or choose a model with another one.");
  await failed(chat).getByRole("button", { name: "Details" }).click();
  await expect(failed(chat)).toContainText("HTTP 401");
  await expectGoodState(page, "a refused key");
  await failed(chat).getByRole("button", { name: "Open providers" }).click();
  await page.waitForURL(/\/admin\/providers/);
  await expect(page.getByRole("main")).toContainText("badkey");

  const other = await openAs(browser, server, await createUser(server, "keyless"));
  await chooseModel(other, "badkey");
  const theirs = new ChatScreen(other);
  await theirs.send("hello");
  await expect(failed(theirs)).toContainText("The key was refused");
  await expect(failed(theirs).getByRole("button", { name: "Open providers" })).toHaveCount(0);
  await failed(theirs).getByRole("button", { name: "Open keys" }).click();
  await other.waitForURL(/\/settings\/keys/);
  await signOut(other);
});

test("a fallback is named in the editor of a model, and answers when the key is refused", async ({ page, chat, server, model, faults }) => {
  faults.expect(/status of 409/); // the provider does not list its models
  await addModel(server, model, "locked", "sk-refused");
  model.answer("who answers?", { pieces: ["The", " other", " one."], perSecond: 100 });
  await page.goto("/admin/models");
  await page.getByRole("button", { name: "More for locked" }).click();
  await page.getByRole("menuitem", { name: "Edit" }).click();
  const drawer = page.getByRole("dialog");
  await drawer.getByLabel("If it cannot answer").selectOption(MODEL);
  await drawer.getByRole("group", { name: MODEL }).getByLabel("Refuses").uncheck();
  await expectGoodState(page, "fallbacks of a model");
  await drawer.getByRole("button", { name: "Save" }).click();
  await expect(page.getByRole("main")).toContainText(`then ${MODEL}`);

  await page.goto("/");
  await chooseModel(page, "locked");
  await chat.send("who answers?");
  await expect(chat.answers).toContainText("The other one.");
  await expect(chat.log).toContainText(`locked cannot be used now; ${MODEL} answers.`);
});

test("a limit that is reached says how much was used, until when and who can raise it, and the message is kept", async ({ server, browser, model }) => {
  model.answer("cost something", { pieces: ["It", " costs", " a bit."], perSecond: 100 });
  const user = await createUser(server, "spender");
  const limit = `/usage-limits/overrides/${user.id}`;
  await server.api("PUT", limit, { spend_limit_micros: 1 });
  const page = await openAs(browser, server, user, /status of 409/);
  const chat = new ChatScreen(page);
  await chat.send("cost something");
  await expect(failed(chat)).toContainText("A limit is reached");
  await expectGoodState(page, "a limit reached by an answer");
  await server.api("DELETE", limit);
  await failed(chat).getByRole("button", { name: "Try again" }).click();
  await expect(chat.answers).toContainText("It costs a bit.");
  await chat.waitUntilIdle();

  await server.api("PUT", limit, { spend_limit_micros: 1 });
  await chat.send("cost something more");
  const refused = page.getByRole("alert").filter({ hasText: "cost something more" });
  await expect(refused).toContainText(/You have used \$.* of \$/);
  await expect(refused).toContainText("an admin can raise it");
  await expectGoodState(page, "a limit reached before a message");
  await server.api("DELETE", limit);
  await refused.getByRole("button", { name: "Try again" }).click();
  await expect(refused).toBeHidden();
  await expect(chat.answers).toHaveCount(2);
  await signOut(page);
});

test("names of models and providers that try to run are only text", async ({ page, chat, server, model }) => {
  const name = `<img src=x onerror=${RUN}> [x](javascript:${RUN})`;
  await server.api("POST", "/models", { name: "hostile", display_name: name, provider: MODEL, model: "wire" });
  model.answer("say your name", { pieces: ["I am a model."], perSecond: 100 });
  await page.goto("/");
  await chooseModel(page, "onerror");
  await expect(page.getByRole("button", { name: /^Model:.*onerror/ })).toBeVisible();
  await chat.send("say your name");
  await expect(chat.answers).toContainText("I am a model.");
  await page.goto("/admin/models");
  await expect(page.getByRole("main")).toContainText("onerror");
  expect(await page.locator("img[src=x], a[href^='javascript']").count()).toBe(0);
});

/** Slack: an administrator connects a workspace, sees that it cannot be reached, and deletes it; a user gets a code that links a person. */
import { expectGoodState } from "./everywhere";
import { expect, test } from "./test";

test("an administrator connects Slack, changes and deletes the connection", async ({ page, faults }) => {
  faults.expect(/status of 400/);
  await page.goto("/admin/slack");
  await expect(page.getByText("No connections. Nothing in Slack starts a chat.")).toBeVisible();
  await expectGoodState(page, "no connections to Slack");
  await page.getByRole("button", { name: "Connect Slack" }).click();
  const form = page.getByRole("dialog");
  await form.getByLabel("Name").fill("Acme");
  await form.getByLabel("Bot token").fill("xapp-1-A012-3456-abcdef");
  await form.getByLabel("App-level token").fill("xapp-1-A012-3456-abcdef");
  await form.getByRole("button", { name: "Connect", exact: true }).click();
  await expect(form).toContainText("does not have the required form");
  await expectGoodState(page, "a connection with a wrong token");
  await form.getByLabel("Bot token").fill("xoxb-1234-5678-AbCdEf");
  await form.getByRole("button", { name: "Connect", exact: true }).click();
  await expect(page.getByRole("heading", { name: /^Acme/ })).toBeVisible();
  await page.getByRole("button", { name: "Events" }).click();
  await expect(page.getByText("No events yet. Is the bot invited to a channel?")).toBeVisible();
  await page.keyboard.press("Escape");
  await page.getByRole("button", { name: "Edit Acme" }).click();
  await form.getByRole("switch", { name: "Enabled" }).click();
  await form.getByRole("button", { name: "Save" }).click();
  await expect(page.getByText("disabled", { exact: true })).toBeVisible();
  await expectGoodState(page, "a disabled connection to Slack");
  await page.getByRole("button", { name: "Edit Acme" }).click();
  await page.getByRole("button", { name: "Delete" }).click();
  await page.getByRole("dialog", { name: "Delete Acme?" }).getByRole("button", { name: "Delete" }).click();
  await expect(page.getByText("No connections. Nothing in Slack starts a chat.")).toBeVisible();
});

test("a user makes a code that links a person of Slack", async ({ page }) => {
  await page.goto("/settings/connections");
  await page.getByRole("button", { name: "Link your Slack" }).click();
  const shown = page.getByRole("dialog", { name: "Send this to the bot" });
  await expect(shown.locator("code")).toHaveText(/^link [A-Z2-7]{26}$/);
  await expectGoodState(page, "a code that links a person of Slack");
  await shown.getByRole("button", { name: "Done" }).click();
  await expect(shown).toBeHidden();
});

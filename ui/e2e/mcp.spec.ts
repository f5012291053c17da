/** An MCP server that each user connects by OAuth: added, connected, used, disconnected. */
import { expectGoodState } from "./everywhere";
import { expect, test } from "./wired";

test("an MCP server is connected by OAuth, its tools are called, its hostile text stays text, an interrupt stops a call, and it is disconnected", async ({
  page,
  chat,
  model,
  servers,
  faults,
}) => {
  // The browser visits the authorization server, which sends it back at once.
  faults.expect(new RegExp(`^request to ${servers.issuer}`));
  model.answer("who am I", { calls: ["notes__whoami", "notes__read_note"], pieces: ["You are there."], perSecond: 100 });

  await page.goto("/admin/mcp");
  await page.getByRole("button", { name: "Add a server" }).click();
  await page.getByRole("textbox", { name: "Name", exact: true }).fill("Notes");
  await page.getByRole("textbox", { name: "Address" }).fill(servers.mcp);
  await page.getByLabel("Authentication").selectOption({ label: "OAuth: each user connects" });
  await page.getByRole("button", { name: "Save" }).click();
  await expect(page.getByRole("heading", { name: /Notes/ })).toBeVisible();

  await page.goto("/settings/connections");
  await expect(page.getByText("Not connected", { exact: true })).toBeVisible();
  // The page that is left may show the connection too, for a moment: the checks are of the one that is loaded anew.
  const back = page.waitForEvent("framenavigated", (frame) => new URL(frame.url()).pathname === "/settings/connections");
  await page.getByRole("button", { name: "Connect", exact: true }).click();
  await back;
  await expect(page.getByRole("button", { name: "Disconnect" })).toBeVisible();
  await expect(page.getByText("Connected", { exact: true })).toBeVisible();
  await expectGoodState(page, "a connected MCP server");

  await chat.begin("who am I");
  await expect(chat.answers.last()).toContainText("You are there.");
  const cards = chat.log.locator("details", { hasText: "Notes" });
  await expect(cards.first()).toBeVisible();
  for (const summary of await chat.log.locator("summary").all()) await summary.click();
  await expect(chat.log).toContainText("ada");
  await expect(chat.log).toContainText("A note <img src=x");

  // The tool ends only by the interrupt: however slow the machine is, it comes during the call.
  model.answer("wait for it", { calls: ["notes__wait"], pieces: ["It has ended."], perSecond: 100 });
  await chat.begin("wait for it");
  await expect(chat.log.locator("details", { hasText: "Notes" })).toBeVisible();
  await chat.interrupt();
  await expect(chat.log).toContainText("Stopped by you");
  await expect(chat.log).not.toContainText("It has ended");
  await chat.send("who am I");
  await expect(chat.answers.last()).toContainText("You are there.");

  await page.goto("/settings/connections");
  await page.getByRole("button", { name: "Disconnect" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Disconnect" }).click();
  await expect(page.getByText("Not connected", { exact: true })).toBeVisible();
});

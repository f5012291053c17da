/** Projects: made in the sidebar, filled on their page, chosen for a chat; and what another member sees. */
import { expectGoodEverywhere, expectGoodState } from "./everywhere";
import { expect, test } from "./test";
import { importChat, text } from "./transcripts";

test("a project is made, filled, and gets chats", async ({ page, server, faults }) => {
  await page.goto("/");
  await page.getByRole("button", { name: "New project" }).click();
  const dialog = page.getByRole("dialog", { name: "New project" });
  await expectGoodState(page, "the dialog of a new project");
  await dialog.getByRole("textbox", { name: "Name" }).fill("Billing");
  await dialog.getByRole("button", { name: "Create" }).click();
  await expect(page.getByRole("heading", { level: 1, name: "Billing" })).toBeVisible();
  const id = new URL(page.url()).pathname.split("/").at(-1) ?? "";
  const main = page.getByRole("main");
  await main.getByRole("textbox", { name: "What the models of its chats are told" }).fill("Amounts are in cents.");
  await main.getByRole("button", { name: "Save" }).click();
  await expect.poll(async () => (await server.api<{ instructions: string }>("GET", `/projects/${id}`)).instructions).toBe("Amounts are in cents.");
  await main.locator("input[type=file]").setInputFiles({ name: "style.md", mimeType: "text/markdown", buffer: Buffer.from("Be brief.") });
  await expect(main.getByRole("link", { name: "style.md" })).toBeVisible();
  await server.api("POST", "/users", { username: "katherine", name: "Katherine Johnson", password: "correct horse battery" });
  await main.getByRole("textbox", { name: "Add a person" }).fill("katherine");
  await main.getByRole("button", { name: "Add katherine" }).click();
  await expect(main.getByRole("combobox", { name: "Role of katherine" })).toHaveValue("reader");

  await importChat(server, "Invoices of June", [{ role: "user", content: [text("hello")] }]);
  const chat = await importChat(server, "Invoices of May", [{ role: "user", content: [text("hello")] }]);
  await page.goto(`/c/${chat}`);
  await main.getByRole("button", { name: "More" }).click();
  await page.getByRole("menuitem", { name: "Project" }).click();
  const move = page.getByRole("dialog", { name: "Project of this chat" });
  await move.getByRole("radio", { name: "Billing" }).check();
  await expect(move.getByRole("status")).toContainText("can read the chat then");
  await expectGoodState(page, "the dialog of a chat's project");
  await move.getByRole("button", { name: "Move" }).click();
  await main.getByRole("link", { name: "Project Billing" }).click();
  await expect(main.getByRole("link", { name: /Invoices of May/ })).toBeVisible();
  await expectGoodEverywhere(page, "a project");

  const indexed = async () => (await server.api<{ items: object[] }>("GET", "/chats?q=Invoices")).items.length;
  await expect.poll(indexed).toBe(2);
  await page.goto("/search?q=Invoices");
  const inProject = main.getByRole("combobox", { name: "Search in" });
  await expect(main.getByRole("link", { name: /Invoices of May/ })).toBeVisible();
  await expect(main.getByRole("link", { name: /Invoices of June/ })).toBeVisible();
  await inProject.selectOption("Billing");
  await expect(page).toHaveURL(new RegExp(`project=${id}`));
  await expect(main.getByRole("link", { name: /Invoices of June/ })).toHaveCount(0);
  await expect(main.getByRole("link", { name: /Invoices of May/ })).toBeVisible();
  await expectGoodState(page, "a search in a project");
  await page.goto(`/projects/${id}`);

  await main.getByRole("link", { name: "New chat here" }).click();
  await expect(main.getByRole("button", { name: "Begin outside of the project" })).toBeVisible();
  await expectGoodState(page, "a new chat in a project");
  await main.getByRole("textbox").first().fill("Why is invoice 17 wrong?");
  await main.getByRole("button", { name: "Send" }).click();
  await expect(main.getByRole("link", { name: "Project Billing" })).toBeVisible();

  await page.goto("/projects");
  await expectGoodState(page, "the list of projects");
  await main.getByRole("link", { name: /Billing/ }).click();
  // The page of the project may hear that it is deleted before it is left.
  faults.expect(/status of 404/);
  await main.getByRole("button", { name: "Delete project" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  await expect(page.getByText("No projects yet.")).toBeVisible();
  await expect.poll(async () => (await server.api<{ project_id?: string }>("GET", `/chats/${chat}`)).project_id).toBeUndefined();
});

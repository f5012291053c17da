/** Notes: written by hand, proposed by a model and decided on in the chat, and managed in the settings. */
import { expectGoodState } from "./everywhere";
import { expect, test } from "./wired";

const PROPOSED = "**Ada** works\u202e on billing.";

test("a model proposes a note, and the person accepts it, once for all tabs", async ({ page, server, model }) => {
  await server.api("PATCH", "/settings/me", { memory: "proposals" });
  model.answer("remember billing", { calls: [{ name: "remember", args: { text: PROPOSED } }], pieces: ["I have proposed it."], perSecond: 100 });
  await page.goto("/");
  const main = page.getByRole("main");
  await main.getByRole("textbox").first().fill("remember billing");
  await main.getByRole("button", { name: "Send" }).click();
  const card = main.getByRole("region", { name: "Proposed note" });
  await expect(card.getByLabel("Note", { exact: true })).toHaveText("**Ada** worksU+202E on billing.");
  await expect(main.getByText("I have proposed it.")).toBeVisible();
  expect((await server.api<{ items: unknown[] }>("GET", "/memory/notes")).items).toEqual([]);
  await expectGoodState(page, "a proposed note");

  const other = await page.context().newPage();
  await other.goto(page.url());
  const same = other.getByRole("main").getByRole("region", { name: "Proposed note" });
  await expect(same).toBeVisible();
  await card.getByRole("button", { name: "Edit" }).click();
  await card.getByRole("textbox", { name: "The note, as it is kept" }).fill("Ada works on invoices.");
  await expectGoodState(page, "a proposed note that is edited");
  await card.getByRole("button", { name: "Accept the edited note" }).click();
  await expect(card).toHaveCount(0);
  await same.getByRole("button", { name: "Accept" }).click();
  await expect(same).toHaveCount(0);
  await other.close();
  await expect
    .poll(async () => (await server.api<{ items: { text: string }[] }>("GET", "/memory/notes")).items.map((one) => one.text))
    .toEqual(["Ada works on invoices."]);
  await page.reload();
  await expect(main.getByText("Proposed a note")).toBeVisible();
  await expect(main.getByText("Kept", { exact: true })).toBeVisible();
});

test("notes are kept by a command, and changed, ordered and deleted in the settings", async ({ page, server }) => {
  const texts = async () => (await server.api<{ items: { text: string; enabled: boolean }[] }>("GET", "/memory/notes")).items.map((one) => one.text);
  const before = await texts();
  await page.goto("/");
  const main = page.getByRole("main");
  await main.getByRole("textbox").first().fill("/remember I use British English.");
  await main.getByRole("textbox").first().press("Enter");
  await expect.poll(texts).toEqual([...before, "I use British English."]);
  await page.goto("/settings/memory");
  await main.getByRole("button", { name: "Add a note" }).click();
  await page.getByRole("dialog").getByRole("textbox", { name: "Note" }).fill("Short answers.");
  await expectGoodState(page, "a new note");
  await page.getByRole("dialog").getByRole("button", { name: "Save" }).click();
  await main.getByRole("button", { name: "Move up: Short answers." }).click();
  await expect.poll(texts).toEqual([...before, "Short answers.", "I use British English."]);
  await main.getByRole("switch", { name: "Tell models: Short answers." }).click();
  await expect(main.getByRole("switch", { name: "Tell models: Short answers." })).not.toBeChecked();
  await expectGoodState(page, "the notes in the settings");
  for (const text of ["Short answers.", "I use British English."]) {
    await main.getByRole("button", { name: `Delete: ${text}` }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
    await expect(main.getByText(text)).toHaveCount(0);
  }
  expect(await texts()).toEqual(before);
  await main.getByRole("radio", { name: "Off" }).click();
  await expect.poll(async () => (await server.api<{ memory: string }>("GET", "/settings/me")).memory).toBe("off");
  await server.api("PATCH", "/settings/me", { memory: "notes" });
});

/** Templates: an administrator duplicates a preset, changes it, compares versions, and deletes it. */
import { expectGoodState } from "./everywhere";
import { expect, test } from "./test";

test("a preset is duplicated, changed with errors at their fields, compared, activated and deleted", async ({ page, server, faults }) => {
  await page.goto("/admin/templates");
  const rows = page.getByRole("region", { name: "Templates" });
  await expect(rows).toContainText("built in");
  await expect(page.getByRole("button", { name: "Edit Scratch" })).toHaveCount(0);
  await page.getByRole("button", { name: "Duplicate Scratch" }).click();
  const drawer = page.getByRole("dialog", { name: "Duplicate Scratch" });
  await expect(drawer.getByRole("textbox", { name: "Name", exact: true })).toHaveValue("scratch-copy");
  await expectGoodState(page, "the form of a template");

  faults.expect(/400/);
  await drawer.getByRole("textbox", { name: "Name", exact: true }).fill("shop");
  await drawer.getByRole("textbox", { name: "Name for people" }).fill("Shop");
  await drawer.getByLabel("Backend").selectOption({ label: "Container" });
  await drawer.getByRole("textbox", { name: "Pool" }).fill("Big Pool");
  await drawer.getByRole("textbox", { name: "Environment" }).fill("SHOP_ENV=test\n1BAD=x");
  await drawer.getByRole("switch", { name: "Desktop" }).click();
  await expect(drawer.getByText("The image, or the hosts of the pool, must have these packages.")).toBeVisible();
  await drawer.getByRole("textbox", { name: "Size of the screen" }).fill("1x1");
  await drawer.getByText("repository", { exact: true }).click();
  await drawer.getByRole("textbox", { name: "Pattern" }).first().fill("(");
  await drawer.getByRole("button", { name: "Save" }).click();
  const wrong = (name: string) => drawer.getByRole("textbox", { name }).first();
  await expect(wrong("Image")).toHaveAccessibleDescription(/is required/);
  await expect(wrong("Pool")).toHaveAccessibleDescription(/small letters/);
  await expect(wrong("Environment")).toHaveAccessibleDescription(/1BAD must be named/);
  await expect(wrong("Pattern")).toHaveAccessibleDescription(/not a valid regular expression/);
  await expect(wrong("Size of the screen")).toHaveAccessibleDescription(/two even numbers/);
  await expectGoodState(page, "a refused template");

  await wrong("Image").fill("docker.io/library/debian:13");
  await wrong("Pool").fill("big");
  await wrong("Size of the screen").fill("1920x1080");
  await drawer.getByRole("switch", { name: "Browser" }).click();
  await wrong("Environment").fill("SHOP_ENV=test");
  await wrong("Pattern").fill("^https://");
  await wrong("Default").fill("https://git.example.org/shop.git");
  await drawer.getByRole("button", { name: "Save" }).click();
  await expect(rows).toContainText("Container · pool big · no network · desktop · browser · version 1 · 0 workspaces");

  await page.getByRole("button", { name: "Edit Shop" }).click();
  const edit = page.getByRole("dialog", { name: "Edit Shop" });
  await edit.getByRole("textbox", { name: "Image" }).fill("docker.io/library/debian:12");
  await edit.getByRole("button", { name: "Close" }).click();
  await page.getByRole("dialog", { name: "Discard your changes?" }).getByRole("button", { name: "Cancel" }).click();
  await expect(edit.getByRole("textbox", { name: "Image" })).toHaveValue("docker.io/library/debian:12");
  await edit.getByRole("button", { name: "Save" }).click();
  await expect(rows).toContainText("version 2");
  expect(await server.api("GET", "/templates")).toMatchObject({ items: expect.arrayContaining([expect.objectContaining({ name: "shop" })]) });

  await page.getByRole("button", { name: "Versions of Shop" }).click();
  const versions = page.getByRole("dialog", { name: "Versions of Shop" });
  await versions.getByRole("button", { name: "Compare" }).click();
  const diff = versions.getByRole("region", { name: "Version 2 compared with version 1" });
  await expect(diff.locator("del")).toHaveText(["image: docker.io/library/debian:12"]);
  await expect(diff.locator("ins")).toHaveText(["image: docker.io/library/debian:13"]);
  await expectGoodState(page, "two versions of a template compared");
  await versions.getByRole("button", { name: "Make active" }).click();
  await expect(versions.getByRole("listitem").filter({ hasText: "Version 1" })).toContainText("active");
  await page.keyboard.press("Escape");
  await expect(rows).toContainText("version 1 of 2");
  await expectGoodState(page, "the list of templates");

  await page.getByRole("button", { name: "Edit Shop" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  await page.getByRole("dialog", { name: "Delete Shop?" }).getByRole("button", { name: "Delete" }).click();
  await expect(rows).not.toContainText("Shop");
});

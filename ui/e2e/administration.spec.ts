/** What administrators read and set for all users: limits, the tool policy, the audit log. */
import { expectGoodState } from "./everywhere";
import { expect, test } from "./test";

test("the limit for everyone is seen and changed where those of users and groups are", async ({ page, server }) => {
  await page.goto("/admin/limits");
  const everyone = page.getByRole("region", { name: "Everyone" });
  await expect(everyone).toContainText("No limit");
  await page.getByRole("button", { name: "Change the limit for everyone" }).click();
  await page.getByLabel("Amount").fill("12.50");
  await page.getByLabel("Period").selectOption("week");
  await expectGoodState(page, "the dialog of the limit for everyone");
  await page.getByRole("button", { name: "Save" }).click();
  await expect(everyone).toContainText("$12.50 a week for each user");
  await expectGoodState(page, "a limit for everyone");
  expect(await server.api("GET", "/usage-limits")).toMatchObject({ spend_limit_micros: 12_500_000, period: "week", source: "database" });
  await page.getByRole("button", { name: "Change the limit for everyone" }).click();
  await page.getByRole("button", { name: "Use the settings file" }).click();
  await expect(everyone).toContainText("From the settings file");
});

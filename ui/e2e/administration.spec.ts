/** What administrators read and set for all users: limits, the tool policy, the audit log. */
import { readFileSync } from "node:fs";
import { expectGoodState } from "./everywhere";
import { expect, test } from "./test";
import { createUser } from "./users";

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

test("the audit log says who did what by name, is filtered by person, object, date and text, and is exported", async ({ page, server }) => {
  const user = await createUser(server, "grace");
  await server.api("PATCH", `/users/${user.id}`, { status: "suspended" });
  await server.api("POST", "/groups", { name: "Compilers" });
  await page.goto("/admin/audit");
  const log = page.getByRole("table", { name: "Audit log" });
  await expect(log).toContainText("admin suspended the user grace");
  await expect(log).toContainText("admin created the group Compilers");
  await log
    .getByRole("row", { name: /suspended the user grace/ })
    .getByText("Details")
    .click();
  await expect(log).toContainText('"suspended"');
  await expectGoodState(page, "the audit log");

  await log.getByRole("button", { name: "the user grace" }).first().click();
  await expect(log.getByRole("row")).toHaveCount(3);
  await page.getByLabel("Text").fill("suspended");
  await page.getByLabel("Text").press("Enter");
  await expect(log.getByRole("row")).toHaveCount(2);
  await page.getByRole("textbox", { name: "Person" }).fill("adm");
  await page.getByRole("button", { name: "admin", exact: true }).first().click();
  await expect(page.getByRole("button", { name: "Do not filter by admin" })).toBeVisible();
  await expect(log.getByRole("row")).toHaveCount(2);
  await expectGoodState(page, "a filtered audit log");
  const download = page.waitForEvent("download");
  await page.getByRole("link", { name: "Export as CSV" }).click();
  const file = readFileSync(await (await download).path(), "utf8");
  expect(file.trim().split("\r\n")).toHaveLength(2);
  expect(file).toContain("admin,suspended the user grace,user.suspend");

  await page.reload();
  await expect(page.getByRole("button", { name: "Do not filter by grace" })).toBeVisible();
  await page.getByLabel("To", { exact: true }).fill("2020-01-01");
  await expect(page.getByText("No entry fits these filters.")).toBeVisible();
  await page.getByRole("button", { name: "Clear" }).click();
  await expect(log).toContainText("admin exported 1 entry of the audit log");
});

test("a tool policy begins with a preset, says which call would run and why, also before it is saved", async ({ page, server }) => {
  await page.goto("/settings/tools");
  await expect(page.getByRole("table", { name: "Tools" })).toContainText("edit_files");
  await page.getByRole("button", { name: "Ask before changes" }).click();
  const preset = page.getByRole("dialog");
  await expect(preset.getByRole("list", { name: "Rules of the preset" })).toContainText("git status *");
  await preset.getByLabel("Command").fill("git status -s");
  await preset.getByRole("button", { name: "Would it run?" }).click();
  await expect(preset.getByRole("status")).toContainText("It runs at once");
  await expectGoodState(page, "a preset of a tool policy");
  await preset.getByRole("button", { name: "Save these rules" }).click();
  await expect(page.getByRole("table", { name: "Rules" })).toContainText("write_file");

  await page.getByLabel("Command").fill("cd app && git push");
  await page.getByRole("button", { name: "Would it run?" }).click();
  const answer = page.getByRole("status").filter({ hasText: "Decided by" });
  await expect(answer).toContainText("A person is asked");
  await expect(answer).toContainText("Decided by the user");
  await expect(answer.getByRole("list")).toContainText("git push");
  await expectGoodState(page, "a tool policy and a call that is tried");
  await server.api("PUT", "/settings/me/tool-policy", { rules: [] });
});

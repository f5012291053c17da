/** Every screen, light and dark, on a desktop and on a phone: it shows, and it is accessible. */
import { expectGoodEverywhere, expectGoodState } from "./everywhere";
import { expect, expectAccessible, PHONE, test } from "./test";

const NO_CHAT = "/c/00000000-0000-4000-8000-000000000000";

const PATHS = {
  "pages of chats": ["/", "/new", "/search?q=answer", NO_CHAT],
  settings: ["general", "account", "notifications", "keys", "connections", "skills", "memory", "tools", "tokens", "usage", "shortcuts"].map(
    (name) => `/settings/${name}`,
  ),
  "pages of administrators": [
    "providers",
    "models",
    "mcp",
    "tools",
    "behaviour",
    "prompts",
    "limits",
    "usage",
    "users",
    "groups",
    "templates",
    "runners",
    "workers",
    "audit",
  ].map((name) => `/admin/${name}`),
};

test.describe.configure({ mode: "parallel" });

for (const [name, paths] of Object.entries(PATHS)) {
  test(`${name} are accessible and fit, in both themes, on a desktop and on a phone`, async ({ page, faults }) => {
    test.setTimeout(180_000);
    if (paths.includes(NO_CHAT)) faults.expect(/status of 404/);
    for (const path of paths) {
      await page.goto(path);
      await expect(page.getByRole("main")).toBeVisible();
      await expect(page.locator(".ui-skeleton, [aria-busy=true]")).toHaveCount(0);
      await expectGoodState(page, path);
    }
  });
}

test("a chat at rest and its menu are accessible and fit", async ({ page, chat }) => {
  await chat.begin("show me a table");
  await expect(chat.log.getByRole("table")).toBeVisible();
  await chat.waitUntilIdle();
  await expectGoodEverywhere(page);
  await page.getByRole("main").getByRole("button", { name: "More" }).click();
  await expect(page.getByRole("menu")).toBeVisible();
  await expectAccessible(page, "menu");
});

test.describe("on a phone", () => {
  test.use({ viewport: PHONE });

  test("the list comes first, then a chat, and back", async ({ page, chat, server }) => {
    const { id } = await server.api<{ id: string }>("POST", "/chats", { content: [{ type: "text", text: "answer fast: on a phone" }] });
    await page.goto("/");
    await chat.sidebar.getByRole("treeitem", { name: /on a phone/i }).click();
    await page.waitForURL(new RegExp(id));
    await expect(chat.answers).toContainText("This is a fast answer");
    await expectAccessible(page);
    await page.goBack();
    await expect(chat.sidebar).toBeVisible();
    await expectAccessible(page);
  });
});

test("search, help and menus are accessible while they are open", async ({ page }) => {
  await page.goto("/");
  await expect(page.getByRole("textbox", { name: "Message", exact: true })).toBeVisible();
  await page.keyboard.press("Control+k");
  await expect(page.getByRole("dialog")).toBeVisible();
  await expectAccessible(page);
  await page.keyboard.press("Escape");
  await expect(page.getByRole("dialog")).toBeHidden();
  await page.getByRole("textbox", { name: "Message", exact: true }).blur();
  await page.keyboard.press("?");
  await expect(page.getByRole("link", { name: "Documentation of this version" })).toHaveAttribute("href", "/help/");
  await expectAccessible(page);
  await page.keyboard.press("Escape");
  await expect(page.getByRole("dialog")).toBeHidden();
  await page.getByRole("button", { name: /^Model:/ }).click();
  await expectAccessible(page);
});

/** The page without a build, over the public API alone. */
import { expect, expectAccessible, test } from "./test";

test("the lite page sends a message, shows the answer as it is written, and lists the chat", async ({ page }) => {
  await page.goto("/lite");
  await expect(page.getByText("Signed in as admin")).toBeVisible();
  await expectAccessible(page);
  await page.getByRole("textbox", { name: "Message" }).fill("tell me a long story");
  await page.getByRole("button", { name: "Send" }).click();
  await expect(page.getByRole("status")).toHaveText("running");
  await expect(page.getByRole("log")).toContainText("Nothing is lost");
  await expect(page.getByRole("navigation", { name: "Chats" }).getByRole("link").first()).toHaveAttribute("aria-current", "page");
  await page.getByRole("textbox", { name: "Message" }).fill("And then?");
  await page.getByRole("textbox", { name: "Message" }).press("Enter");
  await expect(page.getByRole("list", { name: "Queue" })).toContainText("And then?");
  await expectAccessible(page);
  await page.getByRole("button", { name: "Remove from the queue: And then?" }).click();
  await expect(page.getByRole("list", { name: "Queue" })).toBeEmpty();
  await page.getByRole("button", { name: "Interrupt" }).click();
  await expect(page.getByRole("status")).toHaveText("waiting");
  await page.reload();
  await expect(page.getByRole("log")).toContainText("Nothing is lost");
});

test.describe("without cookies in the end", () => {
  test.use({ ownContext: true });

  test("the lite page shows an error of a chat, and says how to sign in again, and how to get the page where it is not built", async ({
    page,
    context,
    faults,
  }) => {
    faults.expect(/status of 401/);
    await page.goto("/lite");
    await page.getByRole("textbox", { name: "Message" }).fill("show me a permanent error");
    await page.getByRole("button", { name: "Send" }).click();
    await expect(page.getByRole("status")).toHaveText("error");
    await expect(page.getByRole("alert")).not.toBeEmpty();
    await context.clearCookies();
    await page.reload();
    await expect(page.getByRole("link", { name: "Sign in" })).toBeVisible();
    await expectAccessible(page);

    // What a server without a build serves at every address, by its own tests.
    await page.route("**/lite", async (route) => {
      const reply = await route.fetch();
      await route.fulfill({ response: reply, body: (await reply.text()).replace(" data-built=true", "") });
    });
    await page.reload();
    await expect(page.getByText("The full page is not built here")).toBeVisible();
    await expectAccessible(page);
  });
});

/** Thumbs below the last answer, with a comment; they stay, change and go. */
import { expectGoodState } from "./everywhere";
import { expect, test } from "./test";
import { importChat, text } from "./transcripts";

test("the last answer is rated with a comment, which stays and can be changed and removed", async ({ page, server }) => {
  const id = await importChat(server, "Rate me", [
    { role: "user", content: [text("What is it?")] },
    { role: "assistant", content: [text("It is **this**.")] },
  ]);
  const ratings = async () => (await server.api<{ items: { value: string; comment: string }[] }>("GET", `/chats/${id}/ratings`)).items;
  await page.goto(`/c/${id}`);
  const group = page.getByRole("group", { name: "Rate this answer" });
  await group.getByRole("button", { name: "Bad answer" }).click();
  const comment = group.getByRole("textbox", { name: "Comment on this answer" });
  await expect(comment).toBeFocused();
  await comment.fill("It forgot the tests.");
  await expectGoodState(page, "the comment of a rating");
  await comment.press("Enter");
  await expect(group.getByRole("button", { name: "Edit the comment" })).toBeVisible();
  await page.reload();
  await expect(group.getByRole("button", { name: "Bad answer", pressed: true })).toBeVisible();
  await expectGoodState(page, "a rated answer");
  await group.getByRole("button", { name: "Good answer" }).click();
  await expect.poll(async () => (await ratings()).map((one) => [one.value, one.comment])).toEqual([["up", "It forgot the tests."]]);
  await group.getByRole("button", { name: "Good answer", pressed: true }).click();
  await expect.poll(ratings).toEqual([]);
  await expect(group.getByRole("button", { pressed: true })).toHaveCount(0);
});

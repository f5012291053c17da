/** Files in messages: chosen, pasted and dropped; images are shown, other files are never run. */
import type { Page } from "@playwright/test";
import { expectGoodState } from "./everywhere";
import { expect, test } from "./test";

/** Two pixels. */
const PNG = "iVBORw0KGgoAAAANSUhEUgAAAAIAAAABCAIAAAB7QOjdAAAAD0lEQVR4nGP4z8DA8J8BAAf/Af8Bf4mnAAAAAElFTkSuQmCC";
const SVG = `<svg xmlns="http://www.w3.org/2000/svg" onload="parent.hostile=1"><script>parent.hostile=1;fetch("https://evil.example/")</script></svg>`;

/** What a file manager hands over when files are dropped on the page. */
async function drop(page: Page, name: string, type: string, content: string | number): Promise<void> {
  const transfer = await page.evaluateHandle(
    ([fileName, mediaType, textOrSize]) => {
      const made = new DataTransfer();
      const body = typeof textOrSize === "number" ? new Uint8Array(textOrSize) : textOrSize;
      made.items.add(new File([body], fileName, { type: mediaType }));
      return made;
    },
    [name, type, content] as const,
  );
  await page.locator("#box").dispatchEvent("drop", { dataTransfer: transfer });
}

async function pasteImage(page: Page): Promise<void> {
  await page.context().grantPermissions(["clipboard-write", "clipboard-read"]);
  await page.evaluate(async (data) => {
    const bytes = Uint8Array.from(atob(data), (char) => char.charCodeAt(0));
    await navigator.clipboard.write([new ClipboardItem({ "image/png": new Blob([bytes], { type: "image/png" }) })]);
  }, PNG);
  await page.locator("#box").press("Control+v");
}

test("files are chosen, pasted and dropped; images are shown, and a drawing with a script is refused", async ({ page, chat, faults }) => {
  faults.expect(/status of 415/);
  await page.goto("/");
  await expect(chat.box).toBeVisible();
  const chooser = page.waitForEvent("filechooser");
  await page.getByRole("button", { name: "Add files and choose tools" }).click();
  await page.getByRole("menuitem", { name: "Attach files" }).click();
  await (await chooser).setFiles([{ name: "chosen.png", mimeType: "image/png", buffer: Buffer.from(PNG, "base64") }]);
  await expect(page.getByRole("button", { name: "Remove chosen.png" })).toBeVisible();
  await pasteImage(page);
  await drop(page, `<img src=x onerror="hostile=1">.txt`, "text/plain", "dropped");
  await drop(page, "drawing.svg", "image/svg+xml", SVG);
  const chips = page.locator(".ui-chip.composer-upload");
  await expect(chips).toHaveCount(4);
  await expect(page.locator(".ui-chip.composer-upload[aria-busy=true]")).toHaveCount(0);
  await expect(chips.filter({ hasText: "onerror" })).toBeVisible();
  const reason = page.getByRole("alert").filter({ hasText: "SVG files are refused, because a browser could run scripts in them." });
  await expect(reason).toBeVisible();
  expect(await reason.evaluate((one) => one.scrollWidth - one.clientWidth), "pixels of the reason that are cut").toBeLessThanOrEqual(0);
  await expectGoodState(page, "files of a draft");
  for (const name of ["chosen.png", "drawing.svg"]) await page.getByRole("button", { name: `Remove ${name}` }).click();
  await expect(chips).toHaveCount(2);

  await chat.send("look at these");
  await page.waitForURL(/\/c\//);
  await expect(chat.answers).toContainText("You said:");
  await chat.interrupt();
  const prompt = chat.log.getByRole("article", { name: "You" });
  const image = prompt.getByRole("img");
  await expect(image).toHaveCount(1);
  await expect.poll(() => image.evaluate((one: HTMLImageElement) => one.naturalWidth)).toBe(2);
  const file = prompt.locator("a[download]");
  await expect(file).toHaveAttribute("download", /onerror/);
  await prompt.getByRole("button", { name: /^Show .*onerror/ }).click();
  await expect(page.getByRole("dialog")).toContainText("dropped");
  await expectGoodState(page, "the text of a file");
  await page.keyboard.press("Escape");
  await prompt.getByRole("button", { name: /^Show (?!.*onerror)/ }).click();
  await expect(page.getByRole("dialog")).toBeVisible();
  await expectGoodState(page, "a large image");
  await page.keyboard.press("Escape");
  await expect(page.getByRole("dialog")).toBeHidden();

  // Opened by its address, the server lets nothing of it run either.
  const reply = await page.request.get((await file.getAttribute("href")) ?? "");
  expect(reply.headers()["content-security-policy"]).toMatch(/sandbox|default-src 'none'/);
  expect(reply.headers()["x-content-type-options"]).toBe("nosniff");
});

test("a long text that is pasted becomes a file, and a file that is too large says so", async ({ page, chat }) => {
  await page.goto("/");
  await page.context().grantPermissions(["clipboard-write", "clipboard-read"]);
  await page.evaluate(() => navigator.clipboard.writeText("line\n".repeat(40)));
  await chat.box.press("Control+v");
  await expect(page.getByRole("button", { name: "Remove pasted-text.txt" })).toBeVisible();
  await expect(chat.box).toHaveValue("");
  await drop(page, "large.bin", "application/octet-stream", 20 * 1024 * 1024 + 1);
  await expect(page.getByRole("alert").filter({ hasText: "Larger than 20 MB" })).toBeVisible();
  await page.getByRole("button", { name: "Remove large.bin" }).click();
  await page.getByRole("button", { name: "Remove pasted-text.txt" }).click();
});

/** Images of the web in a text: nothing is asked of their hosts before a press, and then by chatd's server only. */
import { createServer, type IncomingMessage } from "node:http";
import type { AddressInfo } from "node:net";
import { expectGoodState } from "./everywhere";
import { PHONE } from "./test";
import { importChat, text } from "./transcripts";
import { expect, test } from "./wired";

const PNG = Buffer.from("iVBORw0KGgoAAAANSUhEUgAAAAIAAAABCAIAAAB7QOjdAAAAD0lEQVR4nGP4z8DA8J8BAAf/Af8Bf4mnAAAAAElFTkSuQmCC", "base64");

async function imageHost(use: (url: string, asked: IncomingMessage[]) => Promise<void>): Promise<void> {
  const asked: IncomingMessage[] = [];
  const host = createServer((request, reply) => {
    asked.push(request);
    if (request.url === "/chart.png") reply.writeHead(200, { "content-type": "image/png" }).end(PNG);
    else reply.writeHead(200, { "content-type": "image/png" }).end("<script>window.hostile=1</script>");
  });
  await new Promise<void>((resolve) => host.listen(0, "127.0.0.1", resolve));
  try {
    await use(`http://127.0.0.1:${(host.address() as AddressInfo).port}`, asked);
  } finally {
    host.closeAllConnections();
    host.close();
  }
}

test("an image of the web is loaded by a press, through the server, and stays while the chat is open", async ({ page, chat, server, faults }) => {
  faults.expect(/status of 409/);
  await imageHost(async (url, asked) => {
    const id = await importChat(server, "A chart", [
      { role: "user", content: [text("Show me the chart")] },
      { role: "assistant", content: [text(`Here it is:\n\n![The chart](${url}/chart.png)\n\nand ![](${url}/other.png) in a line.`)] },
    ]);
    await chat.open(id);
    const load = chat.log.getByRole("button", { name: /^Load The chart from 127\.0\.0\.1:/ });
    await expect(load).toBeVisible();
    await expectGoodState(page, "images of the web that were not loaded");
    expect(asked).toEqual([]);

    await load.click();
    const shown = chat.log.getByRole("button", { name: "Show The chart" });
    await expect(shown).toBeFocused();
    const picture = shown.getByRole("img", { name: "The chart" });
    await expect.poll(() => picture.evaluate((one: HTMLImageElement) => one.naturalWidth)).toBe(2);
    expect(asked.map((one) => [one.url, one.headers["user-agent"], one.headers.cookie, one.headers.referer])).toEqual([
      ["/chart.png", "chatd", undefined, undefined],
    ]);

    await chat.log.getByRole("button", { name: /^Load Image from/ }).click();
    await expect(chat.log.getByRole("alert")).toContainText("did not send a PNG, JPEG, GIF or WebP image");
    await page.setViewportSize(PHONE);
    await expectGoodState(page, "images of the web, loaded and refused");

    await shown.click();
    await expect(page.getByRole("dialog", { name: "The chart" })).toBeVisible();
    await page.keyboard.press("Escape");
    await expect(shown).toBeFocused();
    // Of a chat that was opened anew nothing is loaded.
    await page.reload();
    await expect(load).toBeVisible();
    expect(asked).toHaveLength(2);
  });
});

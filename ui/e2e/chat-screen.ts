/** The screen of a chat, by what a person finds on it. */
import { expect, type Locator, type Page } from "@playwright/test";

export const STORY = "tell me a long story";

export class ChatScreen {
  constructor(readonly page: Page) {}

  get box(): Locator {
    return this.page.getByRole("textbox", { name: "Message", exact: true });
  }

  get log(): Locator {
    return this.page.getByRole("log", { name: "Messages" });
  }

  get answers(): Locator {
    return this.log.getByRole("article", { name: "Agent" });
  }

  get queue(): Locator {
    return this.page.getByRole("region", { name: "Queue" });
  }

  get stopButton(): Locator {
    return this.page.getByRole("button", { name: "Stop", exact: true });
  }

  get sidebar(): Locator {
    return this.page.getByRole("navigation", { name: "Chats" });
  }

  get id(): string {
    return this.page.url().split("/c/")[1]?.split("?")[0] ?? "";
  }

  /** The texts of the queue, in order. */
  async queued(): Promise<string[]> {
    return (await this.queue.getByRole("listitem").locator(".ui-ellipsis").allTextContents()).map((one) => one.trim());
  }

  async begin(text: string): Promise<void> {
    await this.page.goto("/");
    await this.send(text);
    await this.page.waitForURL(/\/c\//);
  }

  async open(chatId: string): Promise<void> {
    await this.page.goto(`/c/${chatId}`);
    await expect(this.log).toBeVisible();
  }

  async send(text: string): Promise<void> {
    await this.box.fill(text);
    await this.box.press("Enter");
    await expect(this.box).toHaveValue("");
  }

  /** The model writes the story: there is time for the rest of the test. */
  async beginStory(): Promise<void> {
    await this.begin(STORY);
    await expect(this.log.getByRole("listitem").first()).toBeVisible();
  }

  async waitUntilIdle(): Promise<void> {
    await expect(this.stopButton).toBeHidden();
  }

  async interrupt(): Promise<void> {
    await this.stopButton.click();
    await this.waitUntilIdle();
  }
}

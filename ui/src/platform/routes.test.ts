import { afterEach, describe, expect, it } from "vitest";
import { chatOfPath, isEmbedded, noteEmbedded } from "./routes";

const ID = "0193c5a0-7d1e-7b2f-9a64-2f4e9b7c6d12";

describe("addresses", () => {
  afterEach(() => {
    delete document.documentElement.dataset.embedded;
  });

  it("name a chat in the page and in a frame", () => {
    expect([`/c/${ID}`, `/embed/c/${ID}`, `/x/c/${ID}`, `/c/${ID}/x`].map(chatOfPath)).toEqual([ID, ID, null, null]);
  });

  it("that begin with embed keep the page a chat alone", () => {
    noteEmbedded(`/c/${ID}`);
    expect(isEmbedded()).toBe(false);
    noteEmbedded(`/embed/c/${ID}`);
    expect(isEmbedded()).toBe(true);
  });
});

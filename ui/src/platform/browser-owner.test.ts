import { beforeEach, describe, expect, it } from "vitest";
import { claimBrowser } from "./browser-owner";

const draftOf = (key: string) => localStorage.getItem(`chatd.draft.${key}`);

describe("a browser that several people use", () => {
  beforeEach(() => {
    localStorage.clear();
    localStorage.setItem("chatd.draft.new", "of ada");
    localStorage.setItem("chatd.creation", "of ada");
    localStorage.setItem("chatd.outbox.ada.1", "unsent");
    localStorage.setItem("chatd.theme", "dark");
  });

  it("keeps the drafts of somebody who comes back", () => {
    expect(claimBrowser(localStorage, "ada")).toBe(false);
    expect(claimBrowser(localStorage, "ada")).toBe(false);
    expect(draftOf("new")).toBe("of ada");
  });

  it("shows the next person no draft of the former, and loses no unsent message", () => {
    claimBrowser(localStorage, "ada");
    expect(claimBrowser(localStorage, "bob")).toBe(true);
    expect(draftOf("new")).toBeNull();
    expect(localStorage.getItem("chatd.creation")).toBeNull();
    expect(localStorage.getItem("chatd.outbox.ada.1")).toBe("unsent");
    expect(localStorage.getItem("chatd.theme")).toBe("dark");
    expect(claimBrowser(localStorage, "bob")).toBe(false);
  });
});

import { afterEach, beforeEach, describe, expect, it, test, vi } from "vitest";
import { claimBrowser, isReloading, reloadWhenStale } from "./browser";

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

const miss = (): boolean => window.dispatchEvent(new Event("vite:preloadError"));

afterEach(() => sessionStorage.clear());

test("a part that is gone loads the page again, but not twice in a minute", () => {
  vi.useFakeTimers({ now: 1_000_000 });
  const reload = vi.fn();
  reloadWhenStale(reload);
  expect(isReloading()).toBe(false);
  miss();
  expect(isReloading(), "what fails until then is not shown").toBe(true);
  expect(reload).toHaveBeenCalledTimes(1);
  vi.advanceTimersByTime(59_000);
  miss();
  expect(reload).toHaveBeenCalledTimes(1);
  vi.advanceTimersByTime(1_000);
  miss();
  expect(reload).toHaveBeenCalledTimes(2);
  vi.useRealTimers();
});

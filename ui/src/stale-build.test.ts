import { afterEach, expect, test, vi } from "vitest";
import { reloadWhenStale } from "./stale-build";

const miss = (): boolean => window.dispatchEvent(new Event("vite:preloadError", { cancelable: true }));

afterEach(() => sessionStorage.clear());

test("a part that is gone loads the page again, but not twice in a minute", () => {
  vi.useFakeTimers({ now: 1_000_000 });
  const reload = vi.fn();
  reloadWhenStale(reload);
  expect(miss()).toBe(false);
  expect(reload).toHaveBeenCalledTimes(1);
  vi.advanceTimersByTime(59_000);
  expect(miss(), "the error is thrown, and the page shows it").toBe(true);
  expect(reload).toHaveBeenCalledTimes(1);
  vi.advanceTimersByTime(1_000);
  miss();
  expect(reload).toHaveBeenCalledTimes(2);
  vi.useRealTimers();
});

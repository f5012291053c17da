/** What keeps the page whole: a newer build of the server, a file that is dropped beside its target. */

/**
 * After an upgrade of the server, a tab may need a part of the page that is gone with the old build.
 * Then it loads the new page. Once a minute at most, so that a part that never comes makes no loop.
 */
const KEY = "chatd.reloaded-at";
const PAUSE_MS = 60_000;

let reloading = false;

/** The page is on its way to the new build: what fails meanwhile is not worth a word. */
export const isReloading = (): boolean => reloading;

export function reloadWhenStale(reload: () => void = () => window.location.reload()): void {
  reloading = false;
  window.addEventListener("vite:preloadError", () => {
    const last = Number(sessionStorage.getItem(KEY) ?? 0);
    if (Date.now() - last < PAUSE_MS) return;
    sessionStorage.setItem(KEY, String(Date.now()));
    reloading = true;
    reload();
  });
}

/** A file that is dropped where nothing takes it would be opened by the browser in place of the page. */
export function keepPageOnDrop(): void {
  for (const name of ["dragover", "drop"] as const) {
    window.addEventListener(name, (event) => {
      if (event.defaultPrevented || event.dataTransfer?.types.includes("Files") !== true) return;
      event.preventDefault();
      event.dataTransfer.dropEffect = "none";
    });
  }
}

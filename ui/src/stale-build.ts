/**
 * After an upgrade of the server, a tab may need a part of the page that is gone with the old build.
 * Then it loads the new page. Once a minute at most, so that a part that never comes makes no loop.
 */
const KEY = "chatd.reloaded-at";
const PAUSE_MS = 60_000;

export function reloadWhenStale(reload: () => void = () => window.location.reload()): void {
  window.addEventListener("vite:preloadError", (event) => {
    const last = Number(sessionStorage.getItem(KEY) ?? 0);
    if (Date.now() - last < PAUSE_MS) return;
    sessionStorage.setItem(KEY, String(Date.now()));
    // The error is not thrown: the page is leaving.
    event.preventDefault();
    reload();
  });
}

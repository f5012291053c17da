/**
 * What browsers offer over https and on the same machine only, made so that the page also works at `http://192.168.0.7:7870/`:
 * random ids, the clipboard, and locks between tabs.
 */

/** A random UUID, as `crypto.randomUUID` makes it. */
export function newUuid(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = ((bytes[6] ?? 0) & 0x0f) | 0x40;
  bytes[8] = ((bytes[8] ?? 0) & 0x3f) | 0x80;
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join("-");
}

/** False: the browser does not allow it. */
export async function copyText(text: string): Promise<boolean> {
  // Its type says that it is always there.
  const clipboard = navigator.clipboard as Clipboard | undefined;
  if (clipboard === undefined) return copySelection(text);
  try {
    await clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}

/** The older way, which needs a selection in the page: in the open dialog, if there is one, which keeps the focus inside. */
function copySelection(text: string): boolean {
  const focused = document.activeElement;
  const field = document.createElement("textarea");
  field.value = text;
  field.readOnly = true;
  field.setAttribute("aria-hidden", "true");
  field.style.position = "fixed";
  field.style.opacity = "0";
  (focused?.closest("dialog, [role=dialog]") ?? document.body).append(field);
  field.select();
  try {
    // eslint-disable-next-line @typescript-eslint/no-deprecated -- there is no other without https
    return document.execCommand("copy");
  } finally {
    field.remove();
    if (focused instanceof HTMLElement) focused.focus({ preventScroll: true });
  }
}

/** Runs `act` in one of the tabs that ask for the same name at the same time; where there are no locks in each of them. */
export async function inOneTab(name: string, act: () => Promise<void>): Promise<void> {
  const locks = navigator.locks as LockManager | undefined;
  if (locks === undefined) return act();
  await locks.request(name, { ifAvailable: true }, async (lock) => {
    if (lock !== null) await act();
  });
}

/** The messages of `toasts.tsx` as they are shown: a part of its own, loaded after the page. */
import { useEffect } from "react";
import { Toaster as Shown, toast as show } from "sonner";
import type { ToastMessage } from "./toasts";

let onMounted: () => void = () => undefined;
const mounted = new Promise<void>((resolve) => (onMounted = resolve));

/** Waits until there is a place for it. */
export async function showToast(message: string | ToastMessage): Promise<void> {
  await mounted;
  const { text, detail, tone, action } = typeof message === "string" ? ({ text: message } as ToastMessage) : message;
  const options = {
    duration: action ? 10_000 : 5000,
    ...(detail === undefined ? {} : { description: detail }),
    ...(action ? { action: { label: action.label, onClick: action.run } } : {}),
  };
  if (tone === "danger") show.error(text, options);
  else if (tone === "ok") show.success(text, options);
  else show(text, options);
}

export function Toaster() {
  useEffect(() => onMounted(), []);
  return <Shown position="bottom-right" closeButton visibleToasts={3} toastOptions={{ className: "ui-toast" }} containerAriaLabel="Messages" />;
}

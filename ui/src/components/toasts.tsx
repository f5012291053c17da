import { Toaster, toast as show } from "sonner";

export interface ToastMessage {
  text: string;
  detail?: string | undefined;
  tone?: "ok" | "danger" | undefined;
  action?: { label: string; run: () => void } | undefined;
}

/** A short message that goes away; with `action` it stays ten seconds. */
export function toast(message: string | ToastMessage): void {
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

/** Where toasts appear. */
export const Toasts = () => (
  <Toaster position="bottom-right" closeButton visibleToasts={3} toastOptions={{ className: "toast" }} containerAriaLabel="Messages" />
);

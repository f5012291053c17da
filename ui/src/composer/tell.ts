import { toast } from "@/platform/toasts";

/** Shows why something was refused. What has changed is shown by the chat's events. */
export function tell(work: Promise<unknown>): void {
  work.catch((error: unknown) => toast({ text: error instanceof Error ? error.message : "It failed.", tone: "danger" }));
}

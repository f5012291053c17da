/** Does what a slash command says. */
import { api, urlOf } from "@/api/client";
import { chatPath, NEW_CHAT_PATH } from "@/platform/routes";
import { toast } from "@/platform/toasts";
import type { QueueActions } from "./queue/queue-actions";
import type { SlashName } from "./slash-commands";

interface SlashContext {
  readonly chatId: string;
  readonly actions: QueueActions;
  readonly navigate: (path: string) => void;
  readonly stop: () => void;
}

export async function runSlash(name: SlashName, { chatId, actions, navigate, stop }: SlashContext): Promise<void> {
  const path = { chat_id: chatId };
  switch (name) {
    case "compact":
      await api.POST("/api/v1/chats/{chat_id}/compact", { path });
      return;
    case "fork": {
      const fork = await api.POST("/api/v1/chats/{chat_id}/fork", { path, body: {} });
      navigate(chatPath(fork.id));
      toast("This is a copy. The first chat goes on without it.");
      return;
    }
    case "export":
      download(urlOf("/api/v1/chats/{chat_id}/export", { path, query: { format: "markdown" } }));
      return;
    case "stop":
      stop();
      return;
    case "hold":
      await actions.hold();
      return;
    case "new":
      navigate(NEW_CHAT_PATH);
      return;
    case "model":
    case "plan":
      return;
  }
}

function download(url: string): void {
  const link = document.createElement("a");
  link.href = url;
  link.download = "";
  link.click();
}

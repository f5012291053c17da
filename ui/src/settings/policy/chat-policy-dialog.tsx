/** The tool policy of one chat and its subagents, in a dialog. */
import { api } from "@/api/client";
import { Dialog } from "@/components";
import { Loaded } from "../frame";
import { useResource, useSave } from "../resource";
import { PolicyEditor } from "./policy-editor";
import type { ToolRule } from "./rules";

export function ChatPolicyDialog({ chatId, canEdit, onClose }: { chatId: string; canEdit: boolean; onClose: () => void }) {
  const path = { chat_id: chatId };
  const name = ["chat-tool-policy", chatId];
  const policy = useResource(name, () => api.GET("/api/v1/chats/{chat_id}/tool-policy", { path }));
  const save = useSave((body: { rules: ToolRule[]; version: number }) => api.PUT("/api/v1/chats/{chat_id}/tool-policy", { path, body }), { refresh: [name], quiet: true });
  return (
    <Dialog
      open
      wide
      onOpenChange={(open) => {
        if (!open) onClose();
      }}
      title="Tool policy of this chat"
      description="Which calls of this chat and its subagents need approval. «Always in this chat» adds a rule here."
    >
      <Loaded query={policy}>
        {(found) => <PolicyEditor policy={found} hasLoosen={false} canEdit={canEdit} onSave={(rules) => save.mutateAsync({ rules, version: found.version })} onTry={(body) => api.POST("/api/v1/chats/{chat_id}/tool-policy/try", { path, body })} />}
      </Loaded>
    </Dialog>
  );
}

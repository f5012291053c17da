import type { InputPart, Message } from "@/chat-state";

/** The content of a user's message, as it is sent again. */
export function inputParts(message: Message): InputPart[] {
  return message.content.flatMap((part): InputPart[] => {
    if (part.type === "text") return [{ type: "text", text: part.text }];
    if (part.type === "file" && part.file_id) return [{ type: "file", file_id: part.file_id }];
    return part.type === "file-reference" ? [part] : [];
  });
}

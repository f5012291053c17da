import { ChatComposer } from "./chat-composer";
import { NewChatComposer } from "./new-chat-composer";

/** Where messages are written. Without a chat the first message creates one. */
export function Composer({ chatId }: { chatId: string | null }) {
  return chatId === null ? <NewChatComposer /> : <ChatComposer key={chatId} chatId={chatId} />;
}

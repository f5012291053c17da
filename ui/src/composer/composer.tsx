import { useChatDetails } from "@/connection";
import { ChatComposer } from "./chat-composer";
import { NewChatComposer } from "./new-chat-composer";

/** Where messages are written. Without a chat the first message creates one. */
export function Composer({ chatId }: { chatId: string | null }) {
  const details = useChatDetails(chatId).data;
  if (chatId === null) return <NewChatComposer />;
  if (details?.is_owner === false) return <ReadOnly owner={details.owner_username ?? "its owner"} />;
  return <ChatComposer key={chatId} chatId={chatId} />;
}

/** In place of the box in a chat that another user shares. */
function ReadOnly({ owner }: { owner: string }) {
  return (
    <div className="composer-dock">
      <div className="composer-column">
        <p className="composer-read-only">You can read this chat. Only {owner} can write in it.</p>
      </div>
    </div>
  );
}

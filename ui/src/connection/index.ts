export { type ChatFilters, type ListedChat, type PublicChat } from "./chat-list";
export { CHAT_KEY, type ChatReply, CHATS_KEY, SPEND_WARNING_KEY } from "./chat-list-sync";
export { type SpendWarning } from "./frames";
export {
  type ChatAmendment,
  type ChatList,
  type ConnectionStatus,
  type OpenChat,
  useAmendChat,
  useChat,
  useChatDetails,
  useChatList,
  useChatSelector,
  useConnection,
  useCreatedChat,
  useDeleteChat,
  useOutbox,
  useSettledChat,
} from "./hooks";
export { ConnectionProvider } from "./provider";
export { type Me, useMe } from "@/api/queries";

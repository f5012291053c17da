export { ConnectionProvider } from "./provider";
export { useConnection, type ConnectionStatus } from "./use-connection";
export { useChat, useChatSelector, useOutbox, useSettledChat, type OpenChat } from "./use-chat";
export {
  useAmendChat,
  useChatDetails,
  useChatList,
  useCreatedChat,
  useDeleteChat,
  type ChatAmendment,
  type ChatList,
} from "./use-chat-list";
export type { ChatFilters, ListedChat, PublicChat } from "./chat-list";
export { CHAT_KEY, CHATS_KEY, SPEND_WARNING_KEY, type ChatReply } from "./chat-list-sync";
export type { SpendWarning } from "./frames";
export { useMe, type Me } from "@/api/queries";

export { type ChatFilters, type ListedChat, type PublicChat } from "./chat-list";
export { type ChatReply } from "./chat-list-sync";
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
export { Socket } from "./socket";
export { type Me, useMe } from "@/api/queries";

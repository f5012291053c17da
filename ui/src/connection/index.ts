export { type ChatFilters, type ListedChat, type PublicChat } from "./chat-list";
export { CHAT_KEY, type ChatReply, CHATS_KEY, SPEND_WARNING_KEY } from "./chat-list-sync";
export { type SpendWarning } from "./frames";
export { ConnectionProvider } from "./provider";
export { type OpenChat, useChat, useChatSelector, useOutbox, useSettledChat } from "./use-chat";
export { type ChatAmendment, type ChatList, useAmendChat, useChatDetails, useChatList, useCreatedChat, useDeleteChat } from "./use-chat-list";
export { type ConnectionStatus, useConnection } from "./use-connection";
export { type Me, useMe } from "@/api/queries";

export { SettingsPages } from "./settings-pages";
export { ChatPolicyDialog } from "./policy/chat-policy-dialog";

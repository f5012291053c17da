export { TerminalTab } from "./terminal-tab";

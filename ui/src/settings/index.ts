export { SettingsPages } from "./settings-pages";

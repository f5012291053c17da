export { FilesTab } from "./files-tab";

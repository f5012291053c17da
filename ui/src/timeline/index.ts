export { Timeline } from "./list/timeline";
export { Markdown } from "./markdown/markdown";
export { CodeBlock } from "./markdown/code-block";
export { languageOf } from "./markdown/file-language";
export { useHighlightedLines } from "./markdown/use-highlighted";

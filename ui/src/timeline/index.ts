export { Timeline } from "./list/timeline";
export { Markdown } from "./markdown/markdown";
export { CodeBlock } from "./markdown/code-block";
export { type DiffLine, markWords } from "./diff/unified-diff";
export { languageOf } from "./markdown/file-language";
export { useHighlightedLines } from "./markdown/use-highlighted";
export { useCopy } from "./copy";

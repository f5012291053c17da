/** Models begin a thought with its title, as a heading or as a bold line. */

export interface TitledText {
  readonly title: string | null;
  readonly body: string;
}

const HEADING = /^\s*(?:#{1,6}[ \t]+([^\n]{1,120}?)[ \t]*#*|\*\*([^*\n]{1,120})\*\*)[ \t]*(?:\n|$)/;

export function splitTitle(text: string): TitledText {
  const found = HEADING.exec(text);
  const title = (found?.[1] ?? found?.[2] ?? "").trim();
  if (found === null || title === "") return { title: null, body: text.trim() };
  return { title, body: text.slice(found[0].length).trim() };
}

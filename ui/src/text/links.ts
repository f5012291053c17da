/** Which addresses of a model's text become links, and the text of character references. */

const PROTOCOLS = new Set(["http:", "https:", "mailto:"]);

/** The address to link to; null if the text stays text. Relative addresses would lead into the page. */
export function safeHref(href: string): string | null {
  const decoded = decodeEntities(href).trim();
  if (!/^(?:https?:\/\/|mailto:)/i.test(decoded)) return null;
  try {
    const url = new URL(decoded);
    return PROTOCOLS.has(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

/** An image that stands in the text itself; null for all that would have to be fetched. SVG is left out: it can be large to draw. */
export function safeImage(href: string): string | null {
  return /^data:image\/(?:png|jpeg|gif|webp);base64,[\w+/=]+$/.test(href) ? href : null;
}

const NAMED: Readonly<Record<string, string>> = {
  amp: "&",
  lt: "<",
  gt: ">",
  quot: '"',
  apos: "'",
  nbsp: "\u00a0",
  copy: "©",
  reg: "®",
  trade: "™",
  hellip: "…",
  mdash: "—",
  ndash: "–",
  lsquo: "‘",
  rsquo: "’",
  ldquo: "“",
  rdquo: "”",
  laquo: "«",
  raquo: "»",
  bull: "•",
  middot: "·",
  deg: "°",
  plusmn: "±",
  times: "×",
  divide: "÷",
  larr: "←",
  uarr: "↑",
  rarr: "→",
  darr: "↓",
  le: "≤",
  ge: "≥",
  ne: "≠",
  infin: "∞",
  euro: "€",
  pound: "£",
  yen: "¥",
  cent: "¢",
  sect: "§",
  para: "¶",
  micro: "µ",
  check: "✓",
};

export function decodeEntities(text: string): string {
  if (!text.includes("&")) return text;
  return text.replace(/&(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|(\w{2,8}));/g, (whole, dec?: string, hex?: string, name?: string) => {
    if (name !== undefined) return Object.hasOwn(NAMED, name) ? (NAMED[name] ?? whole) : whole;
    const code = dec === undefined ? Number.parseInt(hex ?? "", 16) : Number.parseInt(dec, 10);
    const isText = code > 0 && code <= 0x10ffff && !(code >= 0xd800 && code <= 0xdfff);
    return isText ? String.fromCodePoint(code) : "\ufffd";
  });
}

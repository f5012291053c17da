/** Text by which a person decides: as it is, without Markdown, and with a sign for what the eye cannot see. */

const HIDDEN = /[\p{Cc}\p{Cf}\p{Cn}\p{Co}\p{Cs}\p{Zl}\p{Zp}]/u;
const BLANK = /[^\S \n]/u;
/** Letters without a shape, and signs that only choose the look of another. */
const SHAPELESS = new Set([0x34f, 0x115f, 0x1160, 0x17b4, 0x17b5, 0x2800, 0x3164, 0xffa0, 0x1d159]);

function isHidden(character: string): boolean {
  if (character === " " || character === "\n") return false;
  const code = character.codePointAt(0) ?? 0;
  const isSelector = (code >= 0x180b && code <= 0x180f) || (code >= 0xfe00 && code < 0xfe0f) || (code >= 0xe0100 && code < 0xe01f0);
  return isSelector || SHAPELESS.has(code) || BLANK.test(character) || HIDDEN.test(character);
}

export interface ExactPiece {
  readonly text: string;
  readonly isHidden: boolean;
}

/** Pieces of the text; a hidden character is one of its own, as its code point. Line feeds stay. */
export function exactPieces(text: string): ExactPiece[] {
  const pieces: ExactPiece[] = [];
  let plain = "";
  const end = () => {
    if (plain !== "") pieces.push({ text: plain, isHidden: false });
    plain = "";
  };
  for (const character of text) {
    if (isHidden(character)) {
      end();
      pieces.push({ text: codePoint(character), isHidden: true });
    } else plain += character;
  }
  end();
  return pieces;
}

function codePoint(character: string): string {
  return `U+${(character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}`;
}

export function ExactText({ text }: { readonly text: string }) {
  return (
    <>
      {exactPieces(text).map((piece, place) =>
        piece.isHidden ? (
          <mark key={place} className="ui-hidden-character" title="A character that cannot be seen">
            {piece.text}
          </mark>
        ) : (
          piece.text
        ),
      )}
    </>
  );
}

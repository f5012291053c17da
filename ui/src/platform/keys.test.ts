import { describe, expect, it } from "vitest";
import { KeyMatcher, keyText, type Press, SHORTCUTS, type Situation, takesText } from "./keys";

const press = (key: string, more: Partial<Press> = {}): Press => ({
  key,
  code: /^[a-z]$/i.test(key) ? `Key${key.toUpperCase()}` : /^\d$/.test(key) ? `Digit${key}` : "",
  ctrlKey: false,
  metaKey: false,
  altKey: false,
  shiftKey: false,
  repeat: false,
  isComposing: false,
  ...more,
});
const reading: Situation = { isMac: false, inText: false, inOverlay: false, singleKeys: true };
const commandOf = (given: Press, situation: Situation = reading) => new KeyMatcher().match(given, situation, 0)?.shortcut.command ?? null;

describe("the keyboard map", () => {
  it("opens the palette with Ctrl K, and with Cmd K on a Mac, also from a text box", () => {
    const typing = { ...reading, inText: true };
    expect(commandOf(press("k", { ctrlKey: true }), typing)).toBe("palette.open");
    expect(commandOf(press("k", { metaKey: true }), { ...typing, isMac: true })).toBe("palette.open");
    expect(commandOf(press("k", { ctrlKey: true }), { ...typing, isMac: true })).toBeNull();
  });

  it("runs shortcuts of a single letter only outside text", () => {
    expect(commandOf(press("d"))).toBe("panel.changes");
    expect(commandOf(press("d"), { ...reading, inText: true })).toBeNull();
  });

  it("runs none of a single letter when they are turned off, but still those with Ctrl or Alt", () => {
    const off = { ...reading, singleKeys: false };
    for (const key of ["j", "k", "n", "d", "r", "t", "o", "e", "c", "f", "[", "]"]) expect(commandOf(press(key), off)).toBeNull();
    expect(commandOf(press("?", { shiftKey: true }), off)).toBeNull();
    expect(commandOf(press("n", { altKey: true }), off)).toBe("chat.new");
    expect(commandOf(press("Escape"), off)).toBe("escape");
  });

  it("tells J from Shift J", () => {
    expect(commandOf(press("j"))).toBe("message.next");
    expect(commandOf(press("J", { shiftKey: true }))).toBe("prompt.next");
  });

  it("reads the key and not the character when Alt makes another one", () => {
    expect(commandOf(press("ñ", { altKey: true, code: "KeyN" }))).toBe("chat.new");
  });

  it("gives the digit of Alt 3", () => {
    expect(new KeyMatcher().match(press("3", { altKey: true }), reading, 0)).toMatchObject({ digit: 3 });
  });

  it("takes G twice within a second, and not slower", () => {
    const matcher = new KeyMatcher();
    expect(matcher.match(press("g"), reading, 0)).toBeNull();
    expect(matcher.match(press("g"), reading, 400)?.shortcut.command).toBe("timeline.top");
    expect(matcher.match(press("g"), reading, 1000)).toBeNull();
    expect(matcher.match(press("g"), reading, 2500)).toBeNull();
  });

  it("forgets a half-typed sequence after another key", () => {
    const matcher = new KeyMatcher();
    matcher.match(press("g"), reading, 0);
    matcher.match(press("j"), reading, 100);
    expect(matcher.match(press("g"), reading, 200)).toBeNull();
  });

  it("leaves keys to an input method and to open dialogs", () => {
    expect(commandOf(press("d", { isComposing: true }))).toBeNull();
    expect(commandOf(press("Process"))).toBeNull();
    expect(commandOf(press("d"), { ...reading, inOverlay: true })).toBeNull();
  });

  it("leaves the browser's own chords alone", () => {
    for (const key of ["c", "f", "r", "t", "d", "n", "e"]) expect(commandOf(press(key, { ctrlKey: true }))).toBeNull();
  });

  it("has no keys twice", () => {
    const keys = SHORTCUTS.map((shortcut) => shortcut.keys);
    expect(new Set(keys).size).toBe(keys.length);
  });

  it("writes keys as people read them", () => {
    expect(keyText("mod+k", true)).toBe("⌘ K");
    expect(keyText("mod+k", false)).toBe("Ctrl K");
    expect(keyText("shift+g", false)).toBe("⇧ G");
    expect(keyText("g g", false)).toBe("G G");
    expect(keyText("alt+1-9", false)).toBe("Alt 1–9");
  });
});

describe("takesText", () => {
  it("is true for boxes and false for buttons and check boxes", () => {
    const make = (html: string) => {
      const place = document.createElement("div");
      place.innerHTML = html;
      return place.firstElementChild;
    };
    expect(takesText(make("<textarea></textarea>"))).toBe(true);
    expect(takesText(make("<input type=search>"))).toBe(true);
    expect(takesText(make("<input type=checkbox>"))).toBe(false);
    expect(takesText(make("<button></button>"))).toBe(false);
    expect(takesText(null)).toBe(false);
  });
});

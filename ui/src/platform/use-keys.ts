import { useEffect } from "react";
import { runCommand } from "./commands";
import { KeyMatcher, overlayIsOpen, takesText } from "./key-match";
import { isMac } from "./keymap";
import { readPreference } from "./preferences";

/** Listens for shortcuts on the whole page. What an element has taken itself is left alone. */
export function useKeys(): void {
  useEffect(() => {
    const matcher = new KeyMatcher();
    const take = (event: KeyboardEvent) => {
      if (event.defaultPrevented) return;
      const situation = {
        isMac: isMac(),
        inText: takesText(document.activeElement),
        inOverlay: overlayIsOpen(),
        singleKeys: readPreference("singleKeys"),
      };
      const match = matcher.match(event, situation, event.timeStamp);
      if (match !== null && runCommand(match.shortcut.command, match.digit)) event.preventDefault();
    };
    document.addEventListener("keydown", take);
    return () => document.removeEventListener("keydown", take);
  }, []);
}

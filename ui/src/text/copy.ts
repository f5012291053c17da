import { useCallback, useEffect, useRef, useState } from "react";

const SHOWN_MS = 1500;

/** Copies text, and says for a moment that it was copied. */
export function useCopy(): readonly [boolean, (text: string) => void] {
  const [isCopied, setCopied] = useState(false);
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  useEffect(() => () => clearTimeout(timer.current), []);
  const copy = useCallback((text: string) => {
    void copyText(text).then((done) => {
      setCopied(done);
      clearTimeout(timer.current);
      timer.current = setTimeout(() => setCopied(false), SHOWN_MS);
    });
  }, []);
  return [isCopied, copy];
}

/** False: the browser does not allow it, as on a page without HTTPS. */
export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}
